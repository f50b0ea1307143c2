"""Programs: a step as operations on tiles, in order, known before it runs. Pure: no asyncio, no bytes of tiles.

operation.py has one operation and program.py their order; needs.py measures the memory that a program needs, grain.py says how
large the tiles of a device should be, and precision.py what a precision means.
"""
