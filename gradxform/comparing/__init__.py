"""Two recordings compared: aligned, measured, diagnosed."""
