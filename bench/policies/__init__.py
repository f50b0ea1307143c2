"""Rival policies: other ways to place, order and evict the same operations of a step, for the virtual clock.

Nothing but benchmarks uses them. moves.py moves tiles; each policy has a file: least_recent.py, layer_by_layer.py, dmdasd.py.
The rivals are treated well: their memory has no addresses, so it never fragments, and their decisions take no time.
"""
