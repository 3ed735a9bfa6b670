"""Which leaf of one recording is which of the other, and in which layout."""
