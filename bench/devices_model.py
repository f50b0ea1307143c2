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
#: The busiest way of a link to RAM carries its bytes in this share of the time in which the devices, side by side, compute the
#: step's kernels.
LINK_SHARE = 0.6
#: A device gets bytes from other devices so many times as fast as from RAM. NVLink is 12 times as fast as PCIe beside an A100,
#: and 9 times beside an H100.
PEERS = 8
#: Numbers of devices that are compared with one, at as many replicas, and the least speed relative to one.
TARGETS = {2: 1.9, 4: 3.7}
