"""Steps that repeat: rehearsed once as a schedule, bound to the tiers, and played by the workers of asynctile/play."""
