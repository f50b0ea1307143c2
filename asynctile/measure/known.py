"""The rates of this machine: measured once for each kind of device, kept in the user's cache, the same in every process.

So the moves of a step repeat from one start to the next, and `asynctile plan` says what a run here will move.

A file has the rates of the cores, or of one kind of GPU in one precision. It stands beside the machine code of kernels
(asynctile/kernels/cpu/locator.py), in a folder named after the processor and versions. A damaged file, or one of
another machine, is made anew. Where no file can be kept or nothing can be measured, rates are assumed
(asynctile/schedule/rates.py). cores.py and rates.py measure.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import numpy as np
import scipy

from asynctile.device import gpu_title
from asynctile.device.base import Device
from asynctile.device.cuda import CudaDevice
from asynctile.device.names import names_of
from asynctile.errors import AsynctileError
from asynctile.kernels.cpu import cache_folder
from asynctile.measure.cores import measure_cores
from asynctile.measure.rates import measure_gpu
from asynctile.program.precision import compute_dtype
from asynctile.schedule.rates import Rates, assumed
from asynctile.storage.cache import Cache
from asynctile.storage.private import alone

__all__ = ["keep", "known", "machine_rates", "processor"]

logger = logging.getLogger(__name__)

#: Increase it when a probe changes what it measures: older files are not used then.
FORMAT = 1
#: Folder beside the kernels, and suffix of its files.
FOLDER, SUFFIX = "rates", ".json"
#: Most files, most bytes of all of them, most bytes of one.
MOST, MOST_NBYTES, LARGEST_NBYTES = 32, 1 << 18, 1 << 13
#: Title of cores, which have the same rates on every device that they compute for.
ON_CORES = "cores"
#: Runs a coroutine on another loop, and waits for its result.
Run = Callable[[Coroutine[Any, Any, Rates | None]], Rates | None]


def machine_rates(device: Device, precision: str, cap: int | None, run: Run) -> Rates:
    """Return the rates of an open device; measure and keep them if they are not known yet.

    cap: bytes of its memory that a probe may take, None for any.
    run: runs a coroutine on the device's loop.

    Blocks, for some tenths of a second if it measures; one process measures at a time. BLAS must be limited to one
    thread, and nothing of the device may be in use.
    """
    cores = _made_once(ON_CORES, "fp32", measure_cores)
    if not isinstance(device, CudaDevice):
        return cores or assumed(device.name, precision)
    if cores is None:
        return assumed(device.name, precision)

    def measured() -> Rates | None:
        try:
            return run(measure_gpu(device, compute_dtype(precision), cap, cores))
        except AsynctileError as error:  # e.g. other programs took its memory: a probe must not decide whether steps run here
            logger.warning("%s was not measured (%s); its rates are assumed", device.name, error)
            return None

    return _made_once(device.driver.title, precision, measured) or assumed(device.name, precision)


def known(device: str, precision: str) -> Rates | None:
    """Return the kept rates of each device that `device` names; None if no engine has measured them here."""
    first = names_of(device)[0]
    title = gpu_title(first) if first.partition(":")[0] == "cuda" else ON_CORES
    cache = _cache()
    return None if cache is None or title is None else _read(cache, _about(title, precision))


def keep(title: str, precision: str, rates: Rates) -> None:
    """Keep these rates for a GPU of this title, or for ON_CORES; do nothing where no folder can be written."""
    cache, about = _cache(), _about(title, precision)
    if cache is not None:
        cache.keep(_key(about), json.dumps({"about": about, "rates": rates.to_json()}).encode())


def _made_once(title: str, precision: str, measure: Callable[[], Rates | None]) -> Rates | None:
    """Return the kept rates, measuring them first if there are none; None if they cannot be measured or kept."""
    cache, about = _cache(), _about(title, precision)
    if cache is None:
        return None
    found = _read(cache, about)
    if found is not None:
        return found
    with ExitStack() as held:
        held.enter_context(alone(cache.path.parent))
        if _read(cache, about) is None and (measured := measure()) is not None:
            keep(title, precision, measured.rounded())
    return _read(cache, about)


def _read(cache: Cache, about: list[str]) -> Rates | None:
    content = cache.read(_key(about))
    try:
        found = json.loads(content or b"")
        return Rates.from_json(found["rates"]) if found["about"] == about else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _cache() -> Cache | None:
    parent = cache_folder()
    if parent is None:
        return None
    return Cache(parent, FOLDER, SUFFIX, most=MOST, most_nbytes=MOST_NBYTES, largest_nbytes=LARGEST_NBYTES)


def _about(title: str, precision: str) -> list[str]:
    """Return everything that rates depend on, beyond what names the folder of kernels."""
    return [str(FORMAT), title, precision, processor(), str(len(os.sched_getaffinity(0))), np.__version__, scipy.__version__]


def _key(about: list[str]) -> str:
    return hashlib.sha256(repr(about).encode()).hexdigest()


def processor() -> str:
    """Return the processor's name as the system gives it, or an empty string."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""
