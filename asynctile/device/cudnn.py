"""Attention of whole sequences in bf16 by cuDNN, through its Python frontend, where both are installed.

cuDNN thinks in batches of heads. Here a tile's heads are its batch and a tile's sequences are its heads: attention treats
both alike, and so cuDNN's statistics, which it packs by batch, are the rows of a stats tile. Its deterministic gradient
keeps T x T numbers a head and sequence on Hopper; heads that do not fit into the workspace at once go one group after
another. What is done depends on shapes alone: plans are made for a shape and kept, and nothing is allocated to run one.
Whether results are right on this machine is tried once, when the device opens (cudnn_trial.py).

In one thing it is not what asynctile/ops/attention.py says: the score of a sequence's first query, which sees one key, gets a
gradient of rounding instead of exactly none. cuDNN has no way to be told, and what it adds to the key cannot be taken off.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from asynctile.errors import DeviceError
from asynctile.kernels.cuda.array import Array
from asynctile.program.precision import BF16

#: Room that no plan may exceed.
WORKSPACE_NBYTES = 192 << 20
#: Columns of a head that cuDNN's gradient takes: a multiple of 8, and at most as many.
COLUMNS = 128
#: Up to this version of cuDNN, 9.15.0, the frontend copies the lengths of sequences that are no multiple of so many tokens from
#: memory of its own before each gradient, and frees it: a graph that was captured of that would read whatever is there then.
COPIES_LENGTHS, WHOLE_TOKENS = 91500, 128
#: What a plan says that failed, instead of having no way for a shape; to go another way then would depend on more than shapes.
FAILED = re.compile("EXECUTION_FAILED|ALLOC_FAILED|INTERNAL_ERROR|LOADING_FAILED")


def load() -> Any:
    """cuDNN's frontend, with cuDNN behind it; DeviceError, in one sentence, if either is missing."""
    try:
        import cudnn

        cudnn.backend_version()
    except Exception as error:  # whatever is wrong there, it is not used
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DeviceError(f"cuDNN's frontend does not load ({reason}); pip install 'asynctile[cudnn13]' brings it") from error
    return cudnn


@dataclass(slots=True)
class AttentionGraph:
    """A built graph. tensors: in the order of the operands. heads: that it takes at a time."""

    graph: Any
    tensors: list[Any]
    heads: int


class Cudnn:
    """library: what `load` returns. stream: where all runs. workspace: address of `nbytes` on the device, the caller's.

    version: cuDNN's. refused: why the last shape that has no plan has none, or nothing.
    """

    def __init__(self, library: Any, stream: int, workspace: int, nbytes: int = WORKSPACE_NBYTES) -> None:
        self.workspace = workspace
        self.version = str(library.backend_version_string())
        self.refused = ""
        self._library = library
        self._nbytes = nbytes
        self._plans: dict[tuple[int, ...], AttentionGraph | None] = {}
        self._handle = library.create_handle()
        library.set_stream(self._handle, stream)

    def move(self, stream: int, workspace: int) -> None:
        """From now on all runs there. 0 for both: nowhere, until it is moved again."""
        self.workspace = workspace
        self._library.set_stream(self._handle, stream)

    @property
    def words(self) -> str:
        """Its name, and what it had no plan for, so far."""
        return f"cuDNN {self.version}" + (f", not for all shapes ({self.refused})" if self.refused else "")

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        """As Context.attend: q, k, v, out (R, g hs) bf16, stats (2 g, R) float32; False if cuDNN has no way for it."""
        return self._run((q, k, v, out, stats), seqs, heads)

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        """As Context.attend_backward: all but stats (R, g hs) bf16."""
        return self._run((q, k, v, out, dout, stats, dq, dk, dv), seqs, heads)

    def close(self) -> None:
        self._plans.clear()
        self._library.destroy_handle(self._handle)

    def _run(self, operands: tuple[Array, ...], seqs: int, heads: int) -> bool:
        rows, columns = operands[0].shape
        hs = columns // heads
        if operands[0].dtype != BF16 or hs % 8 or hs > COLUMNS:
            return False
        key = (len(operands), rows, columns, seqs, heads)
        if key not in self._plans:
            self._plans[key] = self._plan(operands, seqs, heads)
        plan = self._plans[key]
        if plan is None:
            return False
        for head in range(0, heads, plan.heads):
            pack = {
                tensor: array.ptr + head * (hs * 2 if array.dtype == BF16 else rows * 4)
                for tensor, array in zip(plan.tensors, operands, strict=True)
            }
            plan.graph.execute(pack, self.workspace, self._handle)
        return True

    def _plan(self, operands: tuple[Array, ...], seqs: int, heads: int) -> AttentionGraph | None:
        """For as many heads at a time as fit into the workspace; None if cuDNN has nothing for graphs, or one is too many."""
        rows, columns = operands[0].shape
        if len(operands) > 5 and rows // seqs % WHOLE_TOKENS and self._library.backend_version() <= COPIES_LENGTHS:
            self.refused = f"gradients of {rows // seqs} tokens, which a captured graph needs a later version for"
            return None
        many = heads
        while True:
            try:
                plan = self._build(len(operands) > 5, (many, seqs, rows // seqs, columns // heads), columns)
            except Exception as error:
                if FAILED.search(str(error)):
                    raise DeviceError(
                        f"cuDNN does not get ready for attention ({str(error).splitlines()[-1].strip()}); is another process "
                        "filling the GPU? Without nvidia-cudnn-frontend attention goes its own way"
                    ) from error
                self.refused = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"
                return None
            needed = plan.graph.get_workspace_size()
            if needed <= self._nbytes:
                return plan
            if many == 1:
                self.refused = f"a workspace of {needed} bytes"
                return None
            most = min(many - 1, max(1, many * self._nbytes // needed))
            many = next(count for count in range(most, 0, -1) if heads % count == 0)

    def _build(self, backward: bool, shape: tuple[int, int, int, int], columns: int) -> AttentionGraph:
        """A graph for tensors (heads, sequences, tokens, columns of a head) within rows of `columns`."""
        heads, seqs, tokens, hs = shape
        cudnn, kind = self._library, self._library.data_type
        tile = {"dim": list(shape), "stride": [hs, tokens * columns, columns, 1]}
        row = {"dim": [heads, seqs, tokens, 1], "stride": [seqs * tokens, tokens, 1, 1]}
        graph = cudnn.pygraph(
            io_data_type=kind.BFLOAT16, intermediate_data_type=kind.FLOAT, compute_data_type=kind.FLOAT, handle=self._handle
        )
        options: dict[str, Any] = {
            "attn_scale": 1 / math.sqrt(hs), "diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT,
            "diagonal_band_right_bound": 0,
        }  # fmt: skip

        def given(name: str, place: dict[str, list[int]] = tile, dtype: Any = kind.BFLOAT16) -> Any:
            return graph.tensor(name=name, data_type=dtype, **place)

        def made(tensor: Any, place: dict[str, list[int]] = tile, dtype: Any = kind.BFLOAT16) -> Any:
            return tensor.set_output(True).set_dim(place["dim"]).set_stride(place["stride"]).set_data_type(dtype)

        inputs = {name: given(name) for name in (("q", "k", "v", "o", "dO") if backward else ("q", "k", "v"))}
        if backward:
            inputs["stats"] = given("stats", row, kind.FLOAT)
            gradients = graph.sdpa_backward(**inputs, use_deterministic_algorithm=True, **options)
            outputs = [made(gradient) for gradient in gradients]
        else:
            out, stats = graph.sdpa(**inputs, generate_stats=True, **options)
            outputs = [made(out), made(stats, row, kind.FLOAT)]
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
        graph.check_support()
        graph.build_plans()
        return AttentionGraph(graph, [*inputs.values(), *outputs], heads)
