"""Counters and clocks: a step's traffic by its schedule, rates of the machine, statistics, traces."""
