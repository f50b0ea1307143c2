"""How should a model be cut on a GPU that does not hold it? By plans alone, without a GPU.

    python bench/gpu_plan.py [--models gpt2 gpt2-medium gpt2-xl] [--caps 0.10 0.25 0.50] [--batch 16] [--length 1024]

For each cap the step that a plan foresees, for tiles of a few widths and batches in a few parts: bytes over a link of 50 GB/s
each way, FLOPs at 780 TFLOP/s, and what Python takes to issue its operations, of which the longest decides. Smaller parts keep
activations near, larger tiles are fewer operations. gpu_rows.py has what comes out as `PLACED`.
"""

from __future__ import annotations

from argparse import Namespace

from common import Table, arguments
from gpu_rows import config_named

from asynctile.errors import BudgetError
from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import plan_step

#: Seconds in which the host issues an operation and the copies that go with it, as bench/gpu_issue.py measures them: 51 to 75
#: microseconds on 2 quiet cores of an AMD EPYC (family 26), 76 to 85 where other work was on them.
ISSUE_S = 60e-6
PARTS = (1, 2, 4, 8, 16)


def foreseen(table: Table, config: GPT2Config, name: str, share: float, options: Namespace) -> None:
    """Rows for one model under one cap, the best last and once more."""
    rows, cap = [], int(share * config.states_nbytes)
    for tile in sorted({config.n_embd, 2 * config.n_embd, config.inner}):
        for parts in PARTS:
            try:
                work = Work(batch_size=options.batch, seq_len=options.length, micro_batches=parts, tile=tile)
                plan = plan_step(config, work, Machine(device="cuda:0", device_memory=cap, precision="bf16"))
            except BudgetError:
                continue
            issue_s = plan.operations * ISSUE_S
            step_s = max(plan.link_s or 0.0, plan.compute_s, issue_s)
            rows.append((name, share, tile, parts, plan.operations, plan.uploaded_bytes / 1e9, plan.downloaded_bytes / 1e9,
                         plan.updates_on_host / plan.updates, plan.link_s, plan.compute_s, issue_s, step_s))  # fmt: skip
    table.rows += rows
    if rows:
        best = min(rows, key=lambda row: row[-1])
        table.rows.append((f"{name}: best", *best[1:]))
        print(f'    ("{name}", {share}): ({best[2]}, {best[3]}),', flush=True)


def main() -> None:
    options = arguments(__doc__, models=("gpt2", "gpt2-medium", "gpt2-xl"), caps=(0.10, 0.25, 0.50), batch=16, length=1024)
    table = Table("foreseen", ("model", "cap", "tile", "parts", "operations", "up GB", "down GB", "updated in RAM",
                               "link s", "compute s", "issue s", "step s"))  # fmt: skip
    for name in options.models:
        for share in options.caps:
            foreseen(table, config_named(name, options.length), name, share, options)
    print(table.text())


if __name__ == "__main__":
    main()
