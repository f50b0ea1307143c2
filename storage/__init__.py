"""Storage: where the bytes of every tile are, and how they move between the tiers. It knows no operations.

A tier is one level of memory: the device, the RAM below it (the host), and the spill file below RAM. Start with:
- tile.py: a named rectangle of a tensor, the unit that moves
- slot.py, pool.py, ground.py, arena.py: how a tier's cap is cut into places for tiles
- demand.py: the numbers that a cap is cut by; the floor, the smallest cap that works
- residency.py, ledger.py, move.py: which tile is in which place, in what state, and the moves that follow
- spill.py, blocks.py, container.py: the spill file, from whole tiles down to system calls
- tensors.py, header.py, folder.py, checksums.py: the files of a checkpoint

Imported as `asynctile.storage`, never as `storage`.
"""

if __name__ != "asynctile.storage":
    raise ImportError(f"this folder was imported as {__name__!r}, which would make a second copy of every class in it; "
                      "write `import asynctile.storage` instead")
