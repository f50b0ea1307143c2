"""Meetings of nodes in this process over the NCCL of tests/cuda/nccl.py: node N has the GPU "cuda:N" of one soft machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from asynctile.device.cuda_memory import PinnedMemory
from asynctile.nccl import NcclExchange
from tests.nodes.meetings import SECRET, TERMS
from tests.nodes.meetings import met as met_by
from tests.settle import HANG_S


def join(node: int, nodes: int, address: tuple[str, int], **options: Any) -> NcclExchange:
    """Meet the others as one node."""
    options = {"wait_s": HANG_S, "device": f"cuda:{node}", **options}
    return NcclExchange.meet(node, nodes, address, SECRET, TERMS, **options)


def met(nodes: int, **options: Any) -> AbstractContextManager[list[NcclExchange]]:
    """Give the exchanges of all nodes, by node."""
    return met_by(nodes, join, **options)


def locked(open_soft: Callable[[str], Any], values: bytes) -> np.ndarray:
    """Return bytes in locked RAM."""
    array = np.ndarray((len(values),), np.uint8, PinnedMemory(open_soft("cuda:0")).block(len(values)))
    array[:] = np.frombuffer(values, np.uint8)
    return array
