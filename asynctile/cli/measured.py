"""This machine as a file for `asynctile plan --machine`: its cores, RAM and disk, measured.

asynctile/measure/hardware.py reads such files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time

import numpy as np
import psutil

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.cli.terminal import complain
from asynctile.errors import AsynctileError
from asynctile.layers import GPT2Config
from asynctile.layers.verbs import verbs_at
from asynctile.measure.cores import measure_cores
from asynctile.measure.known import processor
from asynctile.storage.container import aligned_array
from asynctile.storage.spill import SpillTier

__all__ = ["measured"]

#: Edges of tiles at which kernels are measured: those of small and of large models on cores.
EDGES = (128, 512)
#: Columns of a head.
HEAD = 64
#: Bytes of one transfer, and how many are written and read.
BLOCK_NBYTES, BLOCKS = 1 << 20, 256


def measured() -> str:
    """Return the file's text. AsynctileError if the machine has too little memory or disk to be measured."""
    cores = len(os.sched_getaffinity(0))
    complain("asynctile info: measuring products, AdamW and copies ...")
    hold_one_thread()
    try:
        rates = measure_cores()
    finally:
        let_go()
    if rates is None:
        raise AsynctileError("the cores cannot be measured: there is too little spare RAM, or no thread can be started")
    lines = [
        f'title = "{processor() or "this machine"}, {cores} cores"',
        "",
        "[devices]",
        'kind = "cpu"',
        f"count = {cores}",
        f'memory_per_s = "{rates.memory_per_s:.0f}B"  # what AdamW reads and writes',
        f"operation_s = {rates.operation_s:g}  # assumed",
        f"flops_per_s = {{ fp32 = {rates.flops_per_s:.3e} }}  # products of 256 x 256 on all cores",
        "",
        "[ram]",
        f'memory = "{psutil.virtual_memory().total}B"',
        f'updated_per_s = "{rates.updated_per_s:.0f}B"',
        f'copied_per_s = "{rates.copied_per_s:.0f}B"',
        "",
    ]
    complain("asynctile info: measuring the disk of this folder ...")
    lines += [
        "[disk]  # of the folder in which this was measured, with checksums",
        f'memory = "{shutil.disk_usage(".").free}B"',
        f'per_s = "{_disk_per_s():.0f}B"',
    ]
    for edge in EDGES:
        complain(f"asynctile info: measuring every kernel at tiles of {edge} ...")
        lines += ["", f"[verbs.{edge}]", *(f"{verb} = {rate:.3e}" for verb, rate in verbs_at(edge, _shape(edge)).items())]
    return "\n".join(lines) + "\n"


def _shape(edge: int) -> GPT2Config:
    """Return a model whose tiles are whole ones of `edge`, with heads as wide as those of the published models."""
    return GPT2Config(n_layer=1, n_head=edge // HEAD, n_embd=edge, block_size=edge, vocab_size=2 * edge)


def _disk_per_s() -> float:
    """Return the rate of a file in this folder in bytes a second, reads and writes together, past the page cache."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        tier = SpillTier(folder, BLOCKS * BLOCK_NBYTES)
        tier.open()
        try:
            blocks = [tier.take(BLOCK_NBYTES, "a probe") for _ in range(BLOCKS)]
            view = aligned_array(BLOCK_NBYTES)
            view[:] = np.random.default_rng(1).integers(0, 256, BLOCK_NBYTES, np.uint8)
            for block in blocks:  # makes the file
                tier.write(block, view, "a probe")
            began = time.perf_counter()
            for block in blocks:
                tier.write(block, view, "a probe")
                tier.read(block, view, "a probe")
            return 2 * BLOCKS * BLOCK_NBYTES / (time.perf_counter() - began)
        finally:
            tier.close()
