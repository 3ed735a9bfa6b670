"""`gradxform bench`."""
