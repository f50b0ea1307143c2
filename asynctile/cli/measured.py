"""This machine as a file for `asynctile plan --machine`: its cores or GPUs, RAM and disk, measured.

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
from asynctile.cli.measured_gpus import Verbs, measured_gpus
from asynctile.cli.measured_transfers import transfers_per_s
from asynctile.cli.terminal import complain
from asynctile.device import resolved
from asynctile.device.names import names_of
from asynctile.errors import AsynctileError
from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine
from asynctile.layers.verbs import seconds_on_cores, verbs_at
from asynctile.measure.cores import measure_cores
from asynctile.measure.costs import CARRY
from asynctile.measure.known import processor
from asynctile.program.precision import check_precision
from asynctile.schedule.rates import Rates
from asynctile.storage.container import aligned_array
from asynctile.storage.spill import SpillTier

__all__ = ["measured"]

#: Edges of tiles at which kernels are measured: those of small and of large models on cores.
EDGES = (128, 512)
#: Columns of a head.
HEAD = 64
#: Bytes of one transfer, and how many are written and read.
BLOCK_NBYTES, BLOCKS = 1 << 20, 256


def measured(device: str = "cpu", precision: str = "fp32") -> str:
    """Return the file's text.

    device: "cpu", or the GPUs to measure with their links, such as "cuda:0-3". precision: of what GPUs compute. ValueError for
    another device. AsynctileError if it is not there, or if there is too little memory or disk to measure with.
    """
    kind = names_of(resolved(device))[0].partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"--device {device} cannot be measured: its cores are those of cpu; name cpu, or GPUs such as cuda:0")
    check_precision(precision, kind)
    rates = _cores()
    top, verbs = measured_gpus(device, precision) if kind == "cuda" else (_devices(rates), _verbs(rates))
    lines = [*top, "", *_ram(rates), "", *_disk()]
    for edge, found in verbs.items():
        lines += ["", f"[verbs.{edge}]", *(f"{verb} = {rate:.3e}" for verb, rate in found.items())]
    return "\n".join(lines) + "\n"


def _cores() -> Rates:
    """Return the rates of the cores. AsynctileError if they cannot be measured."""
    complain("asynctile info: measuring products, AdamW and copies ...")
    hold_one_thread()
    try:
        rates = measure_cores()
    finally:
        let_go()
    if rates is None:
        raise AsynctileError("the cores cannot be measured: there is too little spare RAM, or no thread can be started")
    return rates


def _devices(rates: Rates) -> list[str]:
    """Return the lines about cores as devices."""
    cores = len(os.sched_getaffinity(0))
    return [
        f'title = "{processor() or "this machine"}, {cores} cores"',
        "",
        "[devices]",
        'kind = "cpu"',
        f"count = {cores}",
        f'memory_per_s = "{rates.memory_per_s:.0f}B"  # what AdamW reads and writes',
        f"operation_s = {rates.operation_s:g}  # assumed",
        f"flops_per_s = {{ fp32 = {rates.flops_per_s:.3e} }}  # products of 256 x 256 on all cores",
    ]


def _verbs(rates: Rates) -> Verbs:
    """Return the rates of all kernels, and of transfers to a file, on all cores together, by tile edge."""
    found = {}
    for edge in EDGES:
        complain(f"asynctile info: measuring every kernel, and transfers to a file, at tiles of {edge} ...")
        shape = GPT2Config(n_layer=1, n_head=edge // HEAD, n_embd=edge, block_size=edge, vocab_size=2 * edge)
        verbs = verbs_at(edge, shape, Machine(device="cpu"), seconds_on_cores)
        found[edge] = {**verbs, CARRY: transfers_per_s(edge, rates)}
    return found


def _ram(rates: Rates) -> list[str]:
    return [
        "[ram]",
        f'memory = "{psutil.virtual_memory().total}B"',
        f'updated_per_s = "{rates.updated_per_s:.0f}B"',
        f'copied_per_s = "{rates.copied_per_s:.0f}B"',
    ]


def _disk() -> list[str]:
    complain("asynctile info: measuring the disk of this folder ...")
    return [
        "[disk]  # of the folder in which this was measured, with checksums",
        f'memory = "{shutil.disk_usage(".").free}B"',
        f'per_s = "{_disk_per_s():.0f}B"',
    ]


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
