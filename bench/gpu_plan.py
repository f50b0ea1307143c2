"""How should a model be cut on a GPU that does not hold it? Plans answer that without a GPU.

    python bench/gpu_plan.py [--models gpt2 gpt2-medium gpt2-xl] [--caps 0.10 0.25 0.50] [--batch 16] [--length 1024]
                             [--host 10] [--issue 60]

For each cap the table gives the step that a plan predicts, for tiles of a few widths, the default one among them. The decisions
of a run give the counts: operations, copies, bytes over the link and within the GPU's memory, FLOPs. Two things are assumed: a
link of 50 GB/s each way, and `--host` milliseconds of Python, in which the graphs of a replayed step are launched
(bench/bench_replay.py). "compute s" is the sum over the kernels on the GPU, each at 780 TFLOP/s for its FLOPs or 4 TB/s for the
bytes that it reads and writes, whichever takes longer, and over copies within the GPU; "GEMM s" is the FLOPs alone. The longest
of link, compute and host is the bound. The first step ("first s") is issued one operation after another, at `--issue`
microseconds each, copies included. The plan itself chooses in how many parts a batch goes through a layer ("passes"). The
prediction leaves out what a GPU loses by many small tiles, in products and between the nodes of a graph. So `PLACED` in
gpu_rows.py has tiles that are larger than the fastest here, and at most a seventh slower.
"""

from __future__ import annotations

from argparse import Namespace

from common import Table, arguments
from gpu_rows import config_named

from asynctile.errors import BudgetError
from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import Plan, plan_step
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling, default_tile
from asynctile.program.grain import COARSE
from asynctile.program.operation import UPDATE, Operation
from asynctile.schedule.pace import pace_of
from asynctile.schedule.rates import assumed

#: FLOPs a second, and bytes of its memory a second, of a GPU like an H200. The time between two kernels of a graph does not
#: count.
GPU = pace_of(assumed("cuda:0", "bf16"), has_link=True)._replace(operation_s=0.0)
#: Milliseconds of the host in a replayed step, and microseconds to issue one operation and its copies in a step that is not
#: replayed: bench/bench_replay.py, on 2 cores of an AMD EPYC (family 26).
HOST_MS, ISSUE_US = 10.0, 60.0


def foreseen(table: Table, config: GPT2Config, name: str, share: float, options: Namespace) -> None:
    """Add the rows of one model under one cap, and the best of them once more at the end."""
    rows, cap = [], int(share * config.states_nbytes)
    for tile in sorted({config.n_embd, 2 * config.n_embd, config.inner, default_tile(config, COARSE)}):
        try:
            work = Work(batch_size=options.batch, seq_len=options.length, tile=tile)
            plan = plan_step(config, work, Machine(device="cuda:0", device_memory=cap, precision="bf16"))
        except BudgetError as error:
            print(f"# {name} at {share}, tile {tile}: the floor is {error.floor / 1e9:.2f} GB", flush=True)
            continue
        rows.append((name, share, *row_of(plan, kernels_s(config, plan, options), options.host * 1e-3, options.issue * 1e-6)))
        print(f"# {rows[-1]}", flush=True)
    table.rows += rows
    if rows:
        best = min(rows, key=lambda row: row[table.columns.index("step s")])
        table.rows.append((f"{name}: best", *best[1:]))
        print(f'    ("{name}", {share}): {best[2]},', flush=True)


def kernels_s(config: GPT2Config, plan: Plan, options: Namespace) -> float:
    """Return the seconds of a planned step's kernels on the GPU, one after another."""
    parameters = Parameters(config, Tiling(config, plan.tile, COARSE), plan.precision)
    rows = parameters.tiling.rows(options.batch, options.length, 1).in_passes(plan.passes)
    spent_s, updates_s = 0.0, 0.0
    for operation in record("step", parameters, rows, kept=plan.kept).operations():
        seconds = GPU.operation(operation.flops, sum(moved(operation)))
        spent_s += seconds
        updates_s += seconds if operation.kernel.startswith("adamw") else 0.0
    return spent_s - updates_s * plan.updates_on_host / plan.updates


def moved(operation: Operation) -> list[int]:
    """Return the bytes of each operand, twice for one that is read and written."""
    return [tile.nbytes * (1 + (use == UPDATE)) for tile, use in zip(operation.operands, operation.access, strict=True)]


def row_of(plan: Plan, kernels_s: float, host_s: float, issue_s: float) -> tuple[object, ...]:
    """Return a row from the tile on.

    kernels_s: of the kernels on the GPU. host_s: of a replayed step. issue_s: of one operation of the first step.
    """
    inside_s = 2 * plan.copied_bytes / GPU.memory_per_s
    link_s = max(plan.uploaded_bytes, plan.downloaded_bytes) / GPU.link_per_s
    bounds = {"link": link_s, "compute": kernels_s + inside_s, "host": host_s}
    bound = max(bounds, key=lambda what: bounds[what])
    moved = (nbytes / 1e9 for nbytes in (plan.uploaded_bytes, plan.downloaded_bytes, plan.copied_bytes))
    return (plan.tile, plan.passes, plan.operations, plan.copies, *moved, plan.updates_on_host / plan.updates,
            plan.flops / GPU.flops_per_s, *bounds.values(), bounds[bound], bound,
            max(*bounds.values(), plan.operations * issue_s))  # fmt: skip


def main() -> None:
    options = arguments(__doc__, models=("gpt2", "gpt2-medium", "gpt2-xl"), caps=(0.10, 0.25, 0.50), batch=16, length=1024,
                        host=HOST_MS, issue=ISSUE_US)  # fmt: skip
    table = Table("foreseen", ("model", "cap", "tile", "passes", "operations", "copies", "up GB", "down GB", "copied GB",
                               "updated in RAM", "GEMM s", "link s", "compute s", "host s", "step s", "bound",
                               "first s"))  # fmt: skip
    for name in options.models:
        for share in options.caps:
            foreseen(table, config_named(name, options.length), name, share, options)
    print(table.text())


if __name__ == "__main__":
    main()
