"""A schedule as arrays, and the threads that run it in compiled code; what its entries mean is asynctile/repeat's."""
