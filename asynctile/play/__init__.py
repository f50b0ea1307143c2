"""A schedule as arrays, and the threads that run it in compiled code. asynctile/repeat makes the arrays."""
