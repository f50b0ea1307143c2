"""Where bytes are, and how they move between tiers; knows no operation. Imported as `asynctile.storage`."""

if __name__ != "asynctile.storage":
    raise ImportError(f"this folder was imported as {__name__!r}, which would make a second copy of every class in it; "
                      "write `import asynctile.storage` instead")
