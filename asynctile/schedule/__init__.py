"""Schedules: what moves when in a step, decided in program order and never by the clock.

Pure: no asyncio, no bytes of tiles. A program (asynctile/program) becomes a schedule in these stages:
- uses.py: the program in numbers; below.py: the same for RAM below a device
- walk.py, stays.py, packer.py: a walk through the repeating program decides which tiles stand in a tier, when and where
  (Belady)
- packing.py: tries walks with different lead times and keeps the best as a packing
- decide.py, emission.py: from packings to a schedule, whose entries know what they must wait for (edges.py); it begins at the
  program's seam, or at any other start (start.py)
- pieces.py: a schedule cut into pieces, each of which becomes one CUDA graph

Sharing a device is decided here too: turns.py, allowance.py.
"""
