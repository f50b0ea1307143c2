"""What is counted and timed: a run without bytes, rates, statistics, traces."""
