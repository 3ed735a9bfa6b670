"""The interface to the frameworks, and the lookup of the framework that owns an array."""
