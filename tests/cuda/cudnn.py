"""The part of cuDNN's frontend that asynctile/device/cudnn.py uses, in NumPy, on a SoftDriver's streams and memory.

It reads and writes at the given addresses, dims and strides, and refuses what the frontend refuses.
"""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np

from asynctile.kernels.bf16 import from_bf16, to_bf16

STEPS = (
    "validate", "build_operation_graph", "create_execution_plans", "deselect_numeric_notes", "check_support", "build_plans",
)  # fmt: skip
#: Bytes of an element.
NBYTES = {"bf16": 2, "f32": 4}


class NotSupported(Exception):
    pass


class SoftTensor:
    """A tensor of the frontend. dim and stride in elements, dtype "bf16" or "f32". Its four setters return the tensor."""

    def __init__(self, dim: Any = None, stride: Any = None, data_type: Any = None, name: str = "") -> None:
        self.dim, self.stride, self.data_type, self.name, self.is_output = dim, stride, data_type, name, False

    def set_output(self, value: bool) -> SoftTensor:
        self.is_output = value
        return self

    def set_dim(self, dim: list[int]) -> SoftTensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> SoftTensor:
        self.stride = stride
        return self

    def set_data_type(self, data_type: str) -> SoftTensor:
        self.data_type = data_type
        return self

    def at(self, address: int) -> np.ndarray:
        """Return the numbers at an address as uint16 or float32, a view of its memory."""
        nbytes = NBYTES[self.data_type]
        assert address % 16 == 0 or self.stride[3] == self.stride[2] == 1, f"{self.name} is not aligned"
        reach = 1 + sum((size - 1) * step for size, step in zip(self.dim, self.stride, strict=True))
        room = np.frombuffer((ctypes.c_char * (reach * nbytes)).from_address(address), np.uint16 if nbytes == 2 else np.float32)
        return np.lib.stride_tricks.as_strided(room, self.dim, [step * nbytes for step in self.stride], writeable=True)


class SoftGraph:
    """A graph of one sdpa or sdpa_backward, built in the frontend's order."""

    def __init__(self, library: SoftCudnn, dtypes: tuple[str, str, str], handle: int) -> None:
        assert dtypes == ("bf16", "f32", "f32") and handle in library.streams
        self._library, self._done = library, 0
        self._inputs: list[SoftTensor] = []
        self._outputs: list[SoftTensor] = []
        self._scale = 0.0

    def __getattr__(self, name: str) -> Any:
        def step(*args: Any) -> None:
            assert STEPS[self._done] == name, f"{name} comes too early or too late"
            self._done += 1
            if name == "validate":
                self._library.validate(self._inputs, self._outputs)

        if name not in STEPS:
            raise AttributeError(name)
        return step

    def tensor(self, *, name: str, dim: list[int], stride: list[int], data_type: str) -> SoftTensor:
        return SoftTensor(dim, stride, data_type, name)

    def sdpa(self, *, q: Any, k: Any, v: Any, generate_stats: bool, **options: Any) -> list[SoftTensor]:
        assert generate_stats
        return self._add([q, k, v], 2, **options)

    def sdpa_backward(
        self, *, q: Any, k: Any, v: Any, o: Any, dO: Any, stats: Any, use_deterministic_algorithm: bool, **options: Any
    ) -> list[SoftTensor]:
        assert use_deterministic_algorithm
        return self._add([q, k, v, o, dO, stats], 3, **options)

    def get_workspace_size(self) -> int:
        assert self._done == len(STEPS)
        batch, heads, tokens, _ = self._inputs[0].dim
        return 2 * batch * heads * (-(-tokens // 64) * 64) ** 2 if len(self._outputs) == 3 else 256

    def execute(self, pack: dict[SoftTensor, int], workspace: int, handle: int) -> None:
        assert set(pack) == {*self._inputs, *self._outputs} and all(type(address) is int for address in pack.values())
        self._library.executed.append(self)
        views = [tensor.at(pack[tensor]) for tensor in (*self._inputs, *self._outputs)]
        size = self.get_workspace_size()
        self._library.streams[handle].put(lambda: ctypes.memset(workspace, 0xFF, size) and self._run(*views))

    def _add(
        self, inputs: list[SoftTensor], outputs: int, *, attn_scale: float,
        diagonal_alignment: str, diagonal_band_right_bound: int,
    ) -> list[SoftTensor]:  # fmt: skip
        assert (diagonal_alignment, diagonal_band_right_bound) == ("top left", 0)
        self._inputs, self._outputs, self._scale = inputs, [SoftTensor() for _ in range(outputs)], attn_scale
        return self._outputs

    def _run(self, q: Any, k: Any, v: Any, *others: Any) -> None:
        self._library.calls += 1
        q, k, v = (from_bf16(x) for x in (q, k, v))
        with np.errstate(invalid="ignore", over="ignore"):
            scores = np.where(np.triu(np.ones((q.shape[2],) * 2, bool), 1), -np.inf, q @ k.swapaxes(2, 3) * self._scale)
            if len(others) == 2:
                out, stats = others
                largest = scores.max(3, keepdims=True)
                weights = np.exp(scores - largest)
                total = weights.sum(3, keepdims=True)
                out[...], stats[...] = to_bf16((weights @ v / total).astype(np.float32)), largest + np.log(total)
            else:
                out, dout, stats, dq, dk, dv = others
                out, dout = from_bf16(out), from_bf16(dout)
                weights = np.exp(scores - stats)
                slope = weights * (dout @ v.swapaxes(2, 3) - (out * dout).sum(3, keepdims=True)) * self._scale
                for target, value in ((dq, slope @ k), (dk, slope.swapaxes(2, 3) @ q), (dv, weights.swapaxes(2, 3) @ dout)):
                    target[...] = to_bf16(value.astype(np.float32))


class SoftCudnn:
    """The module. streams: of handles. executed: graphs, once for each enqueued run. calls: number of those that have run.

    version: as cuDNN counts it, 91600 for 9.16.0.
    """

    data_type = SimpleNamespace(BFLOAT16="bf16", FLOAT="f32")
    diagonal_alignment = SimpleNamespace(TOP_LEFT="top left")
    heur_mode = SimpleNamespace(A="A", FALLBACK="fallback")
    numerical_note = SimpleNamespace(NONDETERMINISTIC="nondeterministic")

    def __init__(self, streams: dict[int, Any]) -> None:
        self._streams = streams
        self._handles = itertools.count(1)
        self.streams: dict[int, Any] = {}
        self.executed: list[SoftGraph] = []
        self.calls = 0
        self.version = 91600

    def backend_version(self) -> int:
        return self.version

    def backend_version_string(self) -> str:
        return f"{self.version // 10000}.{self.version // 100 % 100}"

    def create_handle(self) -> int:
        return next(self._handles)

    def set_stream(self, handle: int, stream: int) -> None:
        self.streams[handle] = self._streams[stream] if stream else None

    def destroy_handle(self, handle: int) -> None:
        del self.streams[handle]

    def pygraph(self, *, io_data_type: str, intermediate_data_type: str, compute_data_type: str, handle: int) -> SoftGraph:
        return SoftGraph(self, (io_data_type, intermediate_data_type, compute_data_type), handle)

    def validate(self, inputs: list[SoftTensor], outputs: list[SoftTensor]) -> None:
        """Refuse what the frontend refuses."""
        batch, heads, tokens, hs = inputs[0].dim
        for tensor in (*inputs, *outputs):
            assert tensor.stride[3] == 1 and (tensor in inputs or tensor.is_output)
            assert tensor.dim in ([batch, heads, tokens, hs], [batch, heads, tokens, 1])
            packed = [heads * tokens, tokens, 1, 1]
            assert tensor.dim[3] == hs or (tensor.stride == packed and tensor.data_type == "f32"), "packed statistics only"
        if len(outputs) == 3 and tokens == 1:
            raise NotSupported("s_q = s_kv = 1 is not supported.")
