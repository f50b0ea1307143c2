"""Schedules on real tiers: made once, bound to slots, and carried out by coroutines, compiled workers or graphs."""
