"""`gradxform demo`."""
