"""The driver interface of the CUDA device: memory, streams, events, copies, kernels, graphs.

cupy_driver.py is the only real implementation. Nothing else in the package calls CUDA, so tests can replace it with a driver on
the CPU (tests/cuda/driver.py). Handles are plain ints. Only `synchronize` and `load` block; every other call is ordered by the
stream that it names.

Several GPUs have a driver each, and one address space. A stream of one may wait for an event of another; every other call takes
streams and events of its own GPU.
"""

from __future__ import annotations

from typing import Any, Protocol

from asynctile.kernels.cuda.array import Array


class OutOfMemory(Exception):
    """The device, or pinned RAM, has no room for an allocation."""


class Driver(Protocol):
    """One GPU. index: its number. name: "cuda:0". title: its maker's name for it. capability: (9, 0) for Hopper.

    shared_nbytes: the most shared memory a block may have. epilogues: describes what adds a bias within a product, once
    `open_gemm` has tried it. attention: describes what computes attention of whole sequences in bf16, once `open_attention` has
    tried it. Both descriptions include the shapes that are unsupported so far. Any thread that has called `bind` may make all
    calls.
    """

    index: int
    name: str
    title: str
    capability: tuple[int, int]
    shared_nbytes: int
    @property
    def epilogues(self) -> str: ...

    @property
    def attention(self) -> str: ...

    def bind(self) -> None:
        """Make this GPU current for the calling thread. Cheap if it already is.

        `launch`, `gemm`, `gemm_onto`, `attend` and `attend_backward` need that. A thread has one current GPU.
        """

    def reach(self, other: Driver) -> None:
        """Let this GPU use the memory of another one directly, where the machine can; otherwise do nothing."""

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes, as the driver counts them."""

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory and return its address. Raises OutOfMemory."""

    def free(self, address: int) -> None: ...

    def pin(self, address: int, nbytes: int) -> None:
        """Lock RAM in place and let the GPU reach it.

        Raises OutOfMemory, which names the resource that ran out, or DeviceError for any other refusal.
        """

    def unpin(self, address: int) -> None: ...

    def is_pinned(self, address: int) -> bool:
        """Return whether an address is in RAM that is locked for GPUs, by whichever driver of this process."""

    def new_stream(self) -> int: ...

    def destroy_stream(self, stream: int) -> None: ...

    def new_event(self, *, timed: bool = False) -> int: ...

    def destroy_event(self, event: int) -> None: ...

    def record(self, event: int, stream: int) -> None: ...

    def wait(self, stream: int, event: int) -> None:
        """Make all later work of `stream` run after `event`, of this GPU or another, as last recorded."""

    def synchronize(self, event: int) -> None:
        """Block until `event` has happened, as one that was never recorded has. Raises any error that occurred on the GPU."""

    def elapsed_s(self, start: int, end: int) -> float:
        """Return the seconds between two timed events that have happened."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two of pinned RAM and the memory of any GPU.

        Between GPUs that do not `reach` each other, the driver copies through RAM.
        """

    def load(self, source: str) -> None:
        """Compile and load the CUDA kernels. Blocks."""

    def launch(self, kernel: str, grid: tuple[int, ...], block: int, shared: int, params: int, stream: int) -> None:
        """Launch a kernel on `stream`. grid: blocks along each axis. block: threads of a block. shared: bytes of shared memory.

        params: address of an array of addresses of the arguments, as cuLaunchKernel takes it.
        """

    def open_gemm(self, stream: int, *, tf32: bool) -> None:
        """Prepare `gemm` on `stream`. tf32: multiply float32 operands as TF32."""

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        """Compute c = op(a) op(b) (+ c), accumulated in float32, on the stream of `open_gemm`.

        Call from one thread at a time.
        """

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        """Do what Context.gemm_onto does (kernels/cuda/context.py), on the stream of `open_gemm`.

        Call from one thread at a time.
        """

    def open_attention(self, stream: int) -> None:
        """Try cuDNN for `attend` and `attend_backward` on `stream`, and set `attention` to a description of the result.

        If cuDNN is missing or gives wrong results, no error is raised: both methods then return False. OutOfMemory if its
        workspace does not fit.
        """

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        """Do what Context.attend does (kernels/cuda/context.py), on the stream of `open_attention`.

        Call from one thread at a time.
        """

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        """Do what Context.attend_backward does, under the same conditions as `attend`."""

    def close_libraries(self) -> None:
        """Close the libraries of `open_gemm` and `open_attention`. Call before their stream is destroyed."""

    def begin_capture(self, stream: int) -> None:
        """Capture work on `stream`, instead of running it, until `end_capture`.

        An event recorded on a captured stream marks a place in the capture. A stream that waits for such an event is captured
        too from then on, also one of another GPU. In the graph, work waits for the work before it on its stream and for the
        events that its stream waited for, and for nothing else. Work that the streams already had continues to run. Events and
        kernel arguments may be reused at once: each call copies both as they are.

        Until the end, these calls fail and spoil the capture: waiting on a captured stream for an event that was recorded
        outside the capture; `synchronize` on an event that was last recorded in a capture, or reading its time (also after the
        end). Other threads may use other streams and events, and memory.
        """

    def end_capture(self, stream: int) -> Any:
        """Return the graph captured since `begin_capture` of this stream. Its streams then run work again.

        Every other stream must have joined: `stream` must have waited, directly or through others, for an event recorded after
        all work captured there. Raises the driver's own error if a stream did not join or the capture was spoiled, and
        OutOfMemory if the device has no room for the graph. After an error no stream is captured any more either.
        """

    def launch_graph(self, graph: Any, stream: int) -> None:
        """Run a graph as one piece of work of `stream`, after its last run, no matter on which streams it was captured."""

    def destroy_graph(self, graph: Any) -> None:
        """Destroy a graph that may still run but is not launched again."""

    def close(self) -> None: ...
