"""What the CUDA device needs of a driver: memory, streams, events, copies, kernels, graphs.

cupy_driver.py is the one there is. Nothing else in the package calls CUDA, so that tests can put a driver on the CPU in its
place (tests/cuda/driver.py). Handles are plain ints. Nothing here waits but `synchronize`; every call is ordered by the
stream that it names.
"""

from __future__ import annotations

from typing import Any, Protocol

from asynctile.kernels.cuda.array import Array


class OutOfMemory(Exception):
    """The device, or pinned RAM, has no room for an allocation."""


class Driver(Protocol):
    """One GPU. name: "cuda:0". title: what its maker calls it. capability: (9, 0) for Hopper.
    shared_nbytes: shared memory that a block may have.

    epilogues: what adds a bias on a product's way out, in words, once `open_gemm` has tried it. attention: what computes
    attention of whole sequences in bf16, once `open_attention` has tried it. Both say what they had no way for so far.
    All calls may come from any thread that called `bind`.
    """

    name: str
    title: str
    capability: tuple[int, int]
    shared_nbytes: int
    @property
    def epilogues(self) -> str: ...

    @property
    def attention(self) -> str: ...

    def bind(self) -> None:
        """Make this GPU the calling thread's; cheap when it is already."""

    def memory(self) -> tuple[int, int]:
        """Free and total bytes, as the driver counts them."""

    def malloc(self, nbytes: int) -> int:
        """Device memory; OutOfMemory."""

    def free(self, address: int) -> None: ...

    def pin(self, address: int, nbytes: int) -> None:
        """Lock RAM in place and let the GPU reach it; OutOfMemory, which says of what; DeviceError if it cannot be."""

    def unpin(self, address: int) -> None: ...

    def new_stream(self) -> int: ...

    def destroy_stream(self, stream: int) -> None: ...

    def new_event(self, *, timed: bool = False) -> int: ...

    def destroy_event(self, event: int) -> None: ...

    def record(self, event: int, stream: int) -> None: ...

    def wait(self, stream: int, event: int) -> None:
        """What is enqueued on `stream` from now on runs after `event` as last recorded."""

    def synchronize(self, event: int) -> None:
        """Block until `event` has happened; raises what went wrong on the device since."""

    def elapsed_s(self, start: int, end: int) -> float:
        """Seconds between two timed events that have happened."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Between any two of device memory and pinned RAM."""

    def load(self, source: str) -> None:
        """Compile and load the CUDA kernels. Blocks."""

    def launch(self, kernel: str, grid: tuple[int, ...], block: int, shared: int, params: int, stream: int) -> None:
        """params: address of an array of addresses of the arguments, as cuLaunchKernel takes it."""

    def open_gemm(self, stream: int, *, tf32: bool) -> None:
        """Make ready for `gemm` on `stream`. tf32: float32 operands are multiplied as TF32."""

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        """c = op(a) op(b) (+ c), added up in float32, on the stream of `open_gemm`. From one thread at a time."""

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        """As Context.gemm_onto (kernels/cuda/context.py), on the stream of `open_gemm`. From one thread at a time."""

    def open_attention(self, stream: int) -> None:
        """Make ready for `attend` and `attend_backward` on `stream`."""

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        """As Context.attend (kernels/cuda/context.py), on the stream of `open_attention`. From one thread at a time."""

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        """As Context.attend_backward."""

    def close_libraries(self) -> None:
        """End what `open_gemm` and `open_attention` have made ready: before its stream is destroyed."""

    def begin_capture(self, stream: int) -> None:
        """From now on what goes to `stream` is written down instead of run, until `end_capture`.

        An event recorded on it is a place in what is written down, and a stream that waits for such an event is written down
        too from then on: in a graph work waits for what was before it on its stream and for the events that this stream waited
        for, and for nothing else. What the streams have yet to do goes on. Events and arguments of kernels may be used
        again at once: both are taken as they are when the call comes.

        Until the end, refused with an error that spoils the capture: to wait on one of its streams for an event that was
        recorded elsewhere; to `synchronize` with an event that was last recorded in a capture, or read its time (after the
        end as well). Other threads may use other streams and events, and memory.
        """

    def end_capture(self, stream: int) -> Any:
        """The graph of what was written down since `begin_capture` of this stream; its streams run again what they are given.

        Every other stream must have been joined: `stream` has waited, by way of others or not, for an event recorded on it
        behind all that was written down there. Raises the driver's own error if one was not, or if the capture was spoiled,
        and OutOfMemory if the device has no room for the graph; no stream is captured any more then either.
        """

    def launch_graph(self, graph: Any, stream: int) -> None:
        """Run a graph as one piece of work of `stream`, whichever streams it was written down on, after its last run."""

    def destroy_graph(self, graph: Any) -> None:
        """Give a graph up, which may still run but is not launched again."""

    def close(self) -> None: ...
