"""`gradxform parity`."""
