"""The training whose scaling over several devices is measured: its model, its memory and its links. Fixed before any result.

bench_devices.py measures it.
"""

from __future__ import annotations

from asynctile.layers import GPT2Config

#: Blocks of width 512, whose head and embedding are a small part of a step.
CONFIG = GPT2Config(n_layer=8, n_head=8, n_embd=512, block_size=256, vocab_size=4096)
BATCH = 8
#: The cap on each device, as a share of the states.
SHARE = 0.25
CAP = int(SHARE * CONFIG.states_nbytes)
#: The busiest way of any link carries its bytes in this share of the time in which the devices, side by side, compute the
#: step's kernels. A device has a link to RAM, and one over which it gets bytes from other devices. Each way of both is as fast.
LINK_SHARE = 0.6
#: Numbers of devices that are compared with one, at as many replicas, and the least speed relative to one.
TARGETS = {2: 1.9, 4: 3.7}
