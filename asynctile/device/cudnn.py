"""Attention over whole sequences in bf16 by cuDNN, through its Python frontend, where both are installed.

cuDNN works on batches of heads. Here a tile's heads are cuDNN's batch and a tile's sequences are its heads. Attention treats
both alike, so cuDNN's statistics, which it packs by batch, are the rows of a stats tile. On Hopper cuDNN's deterministic
gradient keeps T x T numbers per head and sequence. When the workspace is too small for all heads, they are computed in groups.
The choice depends on shapes alone: a plan is made once per shape and kept, and running it allocates nothing. When a device
opens, cudnn_trial.py checks once that the results are right on this machine.

Keys with fewer heads than queries are left to asynctile's own kernels. cuDNN knows them only as heads of one batch, where it
packs the statistics sequence by sequence; a stats tile has them head by head.

One result differs from asynctile/ops/attention.py: the score of a sequence's first query, which sees one key, gets a gradient
of rounding size instead of exactly zero. cuDNN has no option for that, and its contribution to the key cannot be removed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from asynctile.errors import DeviceError
from asynctile.kernels.cuda.array import Array
from asynctile.program.precision import BF16

#: The largest workspace of a plan.
WORKSPACE_NBYTES = 192 << 20
#: The most columns of a head that cuDNN's gradient takes; they must also be a multiple of 8.
COLUMNS = 128
#: Up to this version, 9.15.0, cuDNN's frontend copies the lengths of sequences from memory of its own before each gradient and
#: then frees that memory, unless the length is a multiple of WHOLE_TOKENS. A graph that captured the copy would later read
#: freed memory.
COPIES_LENGTHS, WHOLE_TOKENS = 91500, 128
#: Errors that mean a failure, and not that a shape has no plan. Falling back on them would make the results depend on more than
#: shapes.
FAILED = re.compile("EXECUTION_FAILED|ALLOC_FAILED|INTERNAL_ERROR|LOADING_FAILED")


def load() -> Any:
    """Import cuDNN's Python frontend and return it. Raises DeviceError, in one sentence, if it or cuDNN itself is missing."""
    try:
        import cudnn

        cudnn.backend_version()
    except Exception as error:  # after any error cuDNN is not used
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DeviceError(f"cuDNN's frontend does not load ({reason}); pip install 'asynctile[cudnn13]' adds it") from error
    return cudnn


@dataclass(slots=True)
class AttentionGraph:
    """A built graph. tensors: in the order of the operands. heads: how many heads one run computes."""

    graph: Any
    tensors: list[Any]
    heads: int


class Cudnn:
    """cuDNN's attention on one stream. library: the result of `load`. stream: the stream on which everything runs.

    workspace: address of `nbytes` on the device; the caller owns them. version: cuDNN's version. refused: why the last shape
    without a plan has none, "" while every shape has one.
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
        """Run on this stream and workspace from now on. 0 for both detaches it until the next `move`."""
        self.workspace = workspace
        self._library.set_stream(self._handle, stream)

    @property
    def words(self) -> str:
        """cuDNN's name and version, and the last reason for having no plan."""
        return f"cuDNN {self.version}" + (f", not for all shapes ({self.refused})" if self.refused else "")

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        """Compute attention as Context.attend: q, k, v, out (R, g hs) bf16, stats (2 g, R) float32.

        Returns False if cuDNN has no plan for the shape, or keys have fewer heads than queries.
        """
        return self._run((q, k, v, out, stats), seqs, heads)

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        """Compute the gradients as Context.attend_backward: all but stats are (R, g hs) bf16."""
        return self._run((q, k, v, out, dout, stats, dq, dk, dv), seqs, heads)

    def close(self) -> None:
        self._plans.clear()
        self._library.destroy_handle(self._handle)

    def _run(self, operands: tuple[Array, ...], seqs: int, heads: int) -> bool:
        rows, columns = operands[0].shape
        hs = columns // heads
        if operands[0].dtype != BF16 or hs % 8 or hs > COLUMNS or operands[1].shape != operands[0].shape:
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
        """Return a plan for as many heads at once as fit into the workspace.

        None if cuDNN has no plan that a graph can hold, or if the workspace is too small for a single head.
        """
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
                        f"cuDNN failed while it prepared attention ({str(error).splitlines()[-1].strip()}); end other programs "
                        "on the GPU, or uninstall nvidia-cudnn-frontend to use asynctile's own attention"
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
        """Build a graph for tensors (heads, sequences, tokens, columns of a head) within rows of `columns`."""
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
