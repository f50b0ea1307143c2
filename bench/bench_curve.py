"""How do the bytes of a step fall as its cap grows?

    python bench/bench_curve.py [--models gpt2 gpt2-xl] [--points 24] [--updates device auto] [--write]

Caps from the floor to where everything fits, evenly spaced in bytes, and at 99% and 99.9% of that: bytes up and down per step
on a GPU (bf16, sequences of 1024 tokens), and the fewest that any schedule could move. Nothing runs. With every update on the
device the program is the same under all caps; with `auto`, as in a training, the plan places updates anew for each cap.
Targets: no point moves more than 1.01 times the bytes up of any smaller cap; at 99% less than 1 GiB goes up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from common import Table, arguments, commit, publish, target
from counted import AUTO, ON_DEVICE, Model, models

GIB = 1 << 30
COLUMNS = ("cap GiB", "of all", "least up GiB", "up GiB", "least down GiB", "down GiB", "copied GiB",
           "s to make it", "peak of cap")  # fmt: skip
#: An increase over a smaller cap up to this factor does not count as a rise.
RISE = 1.01
#: A cap under which nearly everything fits, and the most bytes that may go up there.
NEARLY, FEW = 0.99, GIB


def caps(floor: int, alive: int, points: int) -> list[int]:
    """Return caps evenly from the floor to all tiles, the two that are nearly all, and one above."""
    evenly = [floor + (alive - floor) * point // (points - 1) for point in range(points)]
    return sorted({*evenly, int(NEARLY * alive), int(0.999 * alive), alive + GIB // 16})


def curve(model: Model, update: str, points: int) -> tuple[Table, list[tuple[str, float, str]]]:
    """Return the points of one model, and the results against the targets as (what, measured, target)."""
    demand = model.needs()
    alive = demand.resident_nbytes
    tokens = f"{model.batch} x {model.config.block_size} tokens"
    table, up = Table(f"{model.name}, {tokens}, tile {model.tile}, updates: {update}", COLUMNS), {}
    for cap in caps(demand.floor_nbytes, alive, points):
        found = model.counted(cap, update)
        traffic, least = found.traffic, found.least
        up[cap] = traffic.uploaded_nbytes
        table.rows.append((
            cap / GIB, f"{cap / alive:.1%}", least.uploaded_nbytes / GIB, up[cap] / GIB,
            least.downloaded_nbytes / GIB, traffic.downloaded_nbytes / GIB, traffic.copied_nbytes / GIB, found.made_s,
            traffic.device_peak_nbytes / cap))  # fmt: skip
        print(table.title, *table.rows[-1], flush=True)
    nearly = up[int(NEARLY * alive)]
    return table, [
        (f"{table.title}: the largest rise", worst := rise(list(up.values())), target(worst, RISE, above=False)),
        (f"{table.title}: GiB up at {NEARLY:.0%}", nearly / GIB, target(nearly / GIB, FEW / GIB, above=False)),
    ]


def rise(found: Sequence[int]) -> float:
    """Return the largest ratio of a value to the smallest value before it; 1 if the values only fall."""
    before = accumulate(found, min)
    return max([1.0, *(now / max(1, least) for now, least in zip(found[1:], before, strict=False))])


def main() -> None:
    known = models()
    options = arguments(__doc__, models=("gpt2", "gpt2-xl"), points=24, updates=(ON_DEVICE, AUTO))
    wanted = Table("what was wanted", ("what", "measured", "target"))
    tables = [wanted]
    for name in options.models:
        for update in options.updates:
            table, rows = curve(known[name], update, options.points)
            tables.append(table)
            wanted.rows += rows
    publish("bench_curve", __doc__, {"commit": commit(), "precision": "bf16"}, tables, write=options.write)


if __name__ == "__main__":
    main()
