"""Where tiles stand while programs run: tiers, the links between them, and how caps are cut."""
