"""How close does a step come to the fewest possible bytes?

    python bench/bench_bytes.py [--models gpt2 gpt2-medium gpt2-xl "4 layers of 4096"] [--caps 0.10 0.25 0.50] [--write]

Bytes up and down per step on a GPU (bf16, sequences of 1024 tokens), from the schedule, against the fewest bytes that any
schedule could move under the same cap (optimum.py). The bound is for the same program, with updates where a plan places them
and activations recomputed. Nothing runs. Caps are shares of the states (12 bytes a parameter), then shares of all tiles that
are alive at once, and last shares of the states with the tiles that bench/gpu_plan.py predicts to be fastest; and the training
of `make train` under its 4 MiB. Targets: at most 1.4 times the least up at 10%, 1.25 at 25%, 1.15 at 50%. The tables also give
the bytes copied within the device's memory, and the CPU seconds that making the schedule takes.
bench/results/bench_bytes_slots.json has the bytes of commit 0ac74bd, whose steps had slots of two sizes.

The last table is for a folder below RAM: bytes that a step reads from the disk and writes to it, against the bytes that MIN
(asynctile/schedule/fewest.py) reads into a single memory as large as both caps. Target: at most 1.25 times that many read.
There the updates are on the device, and rows go through a layer in as many passes as in a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import bench_stream
from common import Table, arguments, commit, publish, show, target
from counted import AUTO, Model, models
from gpu_rows import PLACED
from optimum import most_at
from small_model import CAP, OPTIONS, SHAPE

from asynctile.errors import BudgetError

GB, MB = 1e9, 1e6
COLUMNS = ("model", "tile", "cap", "cap GB", "least up GB", "up GB", "of the least", "target", "least down GB", "down GB",
           "of the least", "copied GB", "s to make it", "peak of cap")  # fmt: skip
#: A row: its model, the share that its cap is, and the cap in bytes.
Case = tuple[Model, float, int]
DISK_COLUMNS = ("model", "device", "tile", "device memory", "RAM", "device MB", "RAM MB", "MIN reads MB", "read MB", "of MIN",
                "target", "written MB")  # fmt: skip
#: The most that a step should read from the disk, relative to MIN.
MOST_READ = 1.25
STATES, ALIVE, FASTEST = "shares of the states", "shares of all that is alive at once", "of the states, as fast as is foreseen"
DISK = "a disk below RAM, both caps as shares of the states"


def cases(chosen: dict[str, Model], shares: list[float]) -> Iterator[tuple[str, Case]]:
    """Yield (table, case) for all rows."""
    for model in chosen.values():
        alive = model.needs().resident_nbytes
        for share in shares:
            yield STATES, (model, share, int(share * model.config.states_nbytes))
            yield ALIVE, (model, share, int(share * alive))
    for (name, share), tile in PLACED.items():
        if name in chosen and share in shares:
            config = chosen[name].config
            placed = Model(name=name, config=config, batch=16, tile=tile)
            yield FASTEST, (placed, share, int(share * config.states_nbytes))
    yield STATES, (make_train(), CAP / SHAPE.states_nbytes, CAP)


def make_train() -> Model:
    return Model(name="make train", config=SHAPE, batch=OPTIONS.batch_size, tile=SHAPE.n_embd, device=OPTIONS.device,
                 precision=OPTIONS.precision)  # fmt: skip


def over_a_disk(chosen: dict[str, Model]) -> Iterator[tuple[Model, float, float]]:
    """Yield (model, device memory, RAM) of all rows with a disk, both caps as shares of the states."""
    if "gpt2" in chosen:
        yield from ((chosen["gpt2"], *shares) for shares in ((0.25, 0.50), (0.10, 0.50), (0.25, 0.25)))
    yield Model(name="bench_stream", config=bench_stream.CONFIG, batch=bench_stream.BATCH, tile=512, device="emulated",
                precision="fp32"), 0.25, 0.40  # fmt: skip
    yield make_train(), 0.40, 0.60


def disk_figures(model: Model, device_share: float, ram_share: float) -> Sequence[Any]:
    """Return a row of the last table."""
    caps = [int(share * model.config.states_nbytes) for share in (device_share, ram_share)]
    begin = [model.name, model.device, model.tile, f"{device_share:.0%}", f"{ram_share:.0%}", *(cap / MB for cap in caps)]
    try:
        found = model.spilled(*caps)
    except BudgetError:
        return [*begin, *[None] * (len(DISK_COLUMNS) - len(begin))]
    ratio = found.read_nbytes / found.least_nbytes
    return [*begin, found.least_nbytes / MB, found.read_nbytes / MB, ratio, target(ratio, MOST_READ, above=False),
            found.written_nbytes / MB]  # fmt: skip


def figures(model: Model, share: float, cap: int) -> list[Any]:
    """Return a row of the other tables."""
    begin = [model.name, model.tile, f"{share:.0%}", cap / GB]
    try:
        found = model.counted(cap, AUTO)
    except BudgetError:
        return [*begin, *[None] * (len(COLUMNS) - len(begin))]
    up, down = found.traffic.uploaded_nbytes / GB, found.traffic.downloaded_nbytes / GB
    least_up, least_down = found.least.uploaded_nbytes / GB, found.least.downloaded_nbytes / GB
    most = most_at(share)
    return [
        *begin, least_up, up, up / least_up, most and target(up / least_up, most, above=False), least_down, down,
        down / least_down, found.traffic.copied_nbytes / GB, found.made_s, found.traffic.device_peak_nbytes / cap]  # fmt: skip


def main() -> None:
    known = models()
    options = arguments(__doc__, models=tuple(known), caps=(0.10, 0.25, 0.50))
    chosen = {name: known[name] for name in options.models}
    tables = {title: Table(title, COLUMNS) for title in (STATES, ALIVE, FASTEST)} | {DISK: Table(DISK, DISK_COLUMNS)}
    for settings in over_a_disk(chosen):
        tables[DISK].rows.append(disk_figures(*settings))
        print(DISK, *map(show, tables[DISK].rows[-1]), sep="  ", flush=True)
    for title, case in cases(chosen, options.caps):
        tables[title].rows.append(row := figures(*case))
        print(title, *map(show, row), sep="  ", flush=True)
    configuration = {"commit": commit(), "precision": "bf16 on a GPU, float32 for what `make train` trains"}
    publish("bench_bytes", __doc__, configuration, tables.values(), write=options.write)


if __name__ == "__main__":
    main()
