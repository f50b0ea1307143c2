"""A schedule as graphs of a device: the graphs of its pieces, and the replayer that runs them."""
