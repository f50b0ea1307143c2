"""A schedule as arrays, and the threads that run it in compiled code. calls.py makes the arrays."""
