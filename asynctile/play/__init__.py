"""A step that repeats, played by compiled workers: its entries as arrays, and the threads that run them without Python."""
