"""The rules of the diagnosis, one function each."""
