"""NCCL through CuPy, whose module `cupy.cuda.nccl` loads only beside NVIDIA's package of the library."""

from __future__ import annotations

import warnings
from typing import Any

from asynctile.errors import DeviceError


def load() -> Any:
    """Import CuPy's module and return it. Raises DeviceError, in one sentence, if CuPy or the library is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns, and its module is there without a function
            from cupy.cuda import nccl
        if not nccl.available:
            raise ImportError("CuPy does not find the library")
    except Exception as error:  # whatever it is, nothing can be sent
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DeviceError(f"NCCL does not load ({reason}); pip install 'asynctile[nccl13]' adds it (or [nccl12] beside "
                          "[cuda12]), or choose the network 'tcp'") from error
    return nccl
