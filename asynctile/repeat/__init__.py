"""Steps that repeat: decided once as a schedule, bound to the tiers, and played by the workers of asynctile/play."""
