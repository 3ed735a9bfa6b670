"""The transforms: a line or two of mathematics each."""
