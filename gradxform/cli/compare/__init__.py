"""`gradxform compare`."""
