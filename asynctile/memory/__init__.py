"""The places of tiles while programs run: tiers, the links between them, and how their caps are cut."""
