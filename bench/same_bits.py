"""Does a change of structure keep every bit of the results and every byte that moves?

    python bench/same_bits.py record FILE [--tree FOLDER]
    python bench/same_bits.py compare OLD NEW

`record` trains a small ragged model on `cpu`, `emulated` and the CUDA path (over the driver of threads of tests/cuda, where g++
is installed) under many caps, prefetch depths, modes and places of the update, with and without a disk. It also plans larger
models. For each case it records a checksum of losses, norms, weights and moments, and the bytes that each step moved. Under
some cases it also generates text, saves, loads the checkpoint into another engine and continues there. --tree: the checkout to
measure, such as an older commit in a worktree; this one by default. `compare` lists the differences between two records, and
ends with status 1 if there are any. Results hold for one machine with the same libraries.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clean_environment  # noqa: F401
import numpy as np
from safetensors.numpy import load_file

STEPS = 3
#: Ragged in every direction: sequences are cut, and groups of heads are uneven.
MODEL = {"n_layer": 2, "n_head": 5, "n_embd": 40, "block_size": 50, "vocab_size": 101}
TILE, BATCH, LENGTH, MICRO_BATCHES, NEW_TOKENS = 22, 2, 41, 2, 12
MOVED = ("uploaded_bytes", "downloaded_bytes", "spill_read_bytes", "spill_written_bytes")
PLANNED = (
    "tile", "floor_bytes", "floor_operation", "resident_bytes", "device_peak_bytes", "spill_bytes", "operations", "updates",
    "updates_on_host", "flops", *MOVED,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One training. device_share, host_share: caps as shares of the states, 0 for the floor, None for no cap."""

    device: str
    device_share: float | None = None
    host_share: float | None = None
    spill: bool = False
    prefetch: int = 2
    precision: str = "fp32"
    trainer: dict[str, Any] = field(default_factory=dict)

    def name(self) -> str:
        """Return the case's name in a record."""
        parts = [self.device, self.precision, f"prefetch {self.prefetch}"]
        for what, share in (("device", self.device_share), ("host", self.host_share)):
            if share is not None:
                parts.append(f"{what} {share if share else 'floor'}")
        parts += ["spill"] * self.spill + [f"{key} {value}" for key, value in self.trainer.items()]
        return ", ".join(parts)


def cases(gpu: bool) -> Iterator[Case]:
    """Yield the cases that tests/layers/test_equal_bits.py, test_tiers.py and test_cuda_replayed.py vary."""
    modes = [{"recompute": recompute, "clip_norm": clip} for recompute in (True, False) for clip in (None, 1e30, 0.1)]
    yield from (Case("cpu", trainer=mode) for mode in modes)
    yield from (Case("emulated", share, prefetch=depth)
                for share, depth in itertools.product((0.0, 0.1, 0.25, 0.5, None), (0, 1, 2, 8)))  # fmt: skip
    yield from (Case("emulated", share, trainer=mode) for share, mode in itertools.product((0.0, 0.25, None), modes))
    yield from (Case("emulated", share, trainer={"update": "host"}) for share in (0.25, 0.5))
    yield from (Case("cpu", None, share, True, depth) for share, depth in itertools.product((0.0, 0.6, 1.0, 1.5), (0, 2, 8)))
    yield from (
        Case("emulated", *shares, True, depth)
        for shares, depth in itertools.product(((0.2, 0.0), (0.2, 0.3), (0.5, 0.2), (0.2, 1.0), (3.0, 0.0)), (0, 2, 8))
    )
    if gpu:
        for precision in ("fp32", "bf16"):
            yield from (Case("cuda:0", None, precision=precision, trainer=mode) for mode in modes)
            yield from (Case("cuda:0", share, prefetch=depth, precision=precision)
                        for share, depth in itertools.product((0.4, 0.6), (0, 2, 8)))  # fmt: skip
            yield Case("cuda:0", 0.5, precision=precision, trainer={"update": "host"})
            yield Case("cuda:0", 0.6, 1.5, True, precision=precision)


def going_on(gpu: bool) -> Iterator[Case]:
    """Yield the cases with text and a checkpoint, as in tests/layers/test_gpt2.py, test_checkpoint.py and test_cuda.py."""
    yield from (Case("cpu"), Case("cpu", None, 0.0, True), Case("cpu", None, 0.6, True, 0))
    yield from (Case("emulated"), Case("emulated", 0.0), Case("emulated", 0.25, prefetch=0))
    yield from (Case("emulated", 0.2, 0.3, True, depth) for depth in (0, 2))
    yield Case("emulated", 0.25, trainer={"update": "host"})
    if gpu:
        for precision in ("fp32", "bf16"):
            yield Case("cuda:0", precision=precision)
            yield from (Case("cuda:0", 0.5, prefetch=depth, precision=precision) for depth in (0, 2))
            yield Case("cuda:0", 0.6, 1.5, True, precision=precision)


@asynccontextmanager
async def opened(case: Case, config: Any) -> AsyncIterator[Any]:
    """Open the engine of `case` for a model of `config`."""
    from asynctile import Engine

    with tempfile.TemporaryDirectory() as spill:
        options: dict[str, Any] = {"device": case.device, "prefetch": case.prefetch, "precision": case.precision}
        options |= {"spill": spill} if case.spill else {}
        for name, share in (("device_memory", case.device_share), ("host_memory", case.host_share)):
            if share is not None:
                options[name] = int(share * config.states_nbytes) or await floor(config, options | {name: 1})
        async with Engine(**options) as engine:
            yield engine


async def trainer_on(engine: Any, case: Case, config: Any) -> Any:
    from asynctile.layers import GPT2, AdamW, Trainer

    model = await GPT2.create(engine, config, seed=1, tile=TILE)
    optimizer = AdamW(lr=1e-2, warmup=1, decay_steps=9, min_lr=1e-3)
    return Trainer(model, optimizer, micro_batches=MICRO_BATCHES, **{"update": "device", **case.trainer})


def batches_of(config: Any) -> np.ndarray:
    """Return tokens and targets of each step: (steps, 2, B, T)."""
    return np.random.default_rng(1).integers(0, config.vocab_size, (STEPS, 2, BATCH, LENGTH))


def digested(reports: list[Any], checkpoint: Path) -> Any:
    """Return a checksum of losses and norms, and of the weights and moments of a checkpoint."""
    digest = hashlib.sha256(repr([(report.loss, report.grad_norm) for report in reports]).encode())
    for file in ("model.safetensors", "optimizer.safetensors"):
        for name, tensor in sorted(load_file(checkpoint / file).items()):
            digest.update(name.encode() + tensor.tobytes())
    return digest


async def trained(case: Case) -> dict[str, Any]:
    """Train by `case`. Returns the checksum of the results, and the bytes that each step moved."""
    from asynctile.layers import GPT2Config

    config = GPT2Config(**MODEL)
    with tempfile.TemporaryDirectory() as place:
        async with opened(case, config) as engine:
            trainer = await trainer_on(engine, case, config)
            reports = [await trainer.step(tokens, targets) for tokens, targets in batches_of(config)]
            operations = engine.statistics().operations
            await trainer.save(Path(place, "checkpoint"))
        digest = digested(reports, Path(place, "checkpoint"))
    moved = [[getattr(report, name) for name in MOVED] for report in reports]
    return {"bits": digest.hexdigest()[:16], "moved": moved, "operations": operations}


async def gone_on(case: Case) -> dict[str, Any]:
    """Make a step, text and a checkpoint, then load it in another engine and make text and a step there.

    Returns the checksum, and the bytes that each part moved.
    """
    from asynctile.layers import GPT2Config, Trainer

    config = GPT2Config(**MODEL)
    batches = batches_of(config)
    moved: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as place:
        first, second = Path(place, "first"), Path(place, "second")
        async with opened(case, config) as engine:
            trainer = await trainer_on(engine, case, config)
            reports = [await trainer.step(*batches[0])]
            with counted(engine, moved, "text"):
                words = await text(trainer.model, batches[1][0])
            with counted(engine, moved, "save"):
                await trainer.save(first)
        async with opened(case, config) as engine:
            with counted(engine, moved, "load"):
                trainer = await Trainer.load(engine, first, update=case.trainer.get("update", "device"))
            with counted(engine, moved, "text after load"):
                words += await text(trainer.model, batches[1][0])
            with counted(engine, moved, "step after load"):
                reports.append(await trainer.step(*batches[1]))
            await trainer.save(second)
        digest = digested(reports, second)
    digest.update(words)
    return {"bits": digest.hexdigest()[:16], "moved": moved}


async def text(model: Any, tokens: np.ndarray) -> bytes:
    """Return the bytes of the logits and the loss of tokens (B, T), and of text generated past the end of the window."""
    drawn = [token async for token in model.generate(tokens[0], max_new_tokens=NEW_TOKENS, seed=3)]
    return (await model.logits(tokens)).tobytes() + repr((await model.loss(tokens, tokens), drawn)).encode()


@contextmanager
def counted(engine: Any, moved: dict[str, list[int]], what: str) -> Iterator[None]:
    """Store the bytes that move inside the block in moved[what]."""
    before = engine.statistics()
    yield
    after = engine.statistics()
    moved[what] = [getattr(after, name) - getattr(before, name) for name in MOVED]


async def floor(config: Any, options: dict[str, Any]) -> int:
    """Return the floor that an engine with a cap of one byte reports."""
    from asynctile import BudgetError, Engine
    from asynctile.layers import GPT2

    async with Engine(**options) as engine:
        try:
            await GPT2.create(engine, config, tile=TILE)
        except BudgetError as error:
            return int(error.floor)
    raise RuntimeError("a cap of one byte was accepted")


def planned() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the plans of models that are not trained here."""
    from asynctile.layers import GPT2Config

    first = GPT2Config(n_layer=4, n_head=4, n_embd=128, block_size=64, vocab_size=256)
    for name, config, device, precision, batch, tile in (
        ("make train", first, "emulated", "fp32", 16, None),
        ("gpt2", GPT2Config.named("gpt2"), "emulated", "fp32", 4, None),
        ("gpt2", GPT2Config.named("gpt2"), "cuda:0", "bf16", 16, 768),
        ("gpt2-xl", GPT2Config.named("gpt2-xl"), "cuda:0", "bf16", 12, 3072),
    ):
        for share, update in itertools.product((0.25, 0.5), ("device", "host")):
            work = {"batch_size": batch, "seq_len": config.block_size, "update": update, "tile": tile}
            machine = {"device": device, "precision": precision, "device_memory": int(share * config.states_nbytes)}
            plan = plan_of(config, work, machine)
            found = {field: getattr(plan, field) for field in PLANNED}
            yield f"plan of {name}, {device}, {precision}, device {share}, update {update}", found


def plan_of(config: Any, work: dict[str, Any], machine: dict[str, Any]) -> Any:
    """Plan with the tree that is measured. Older trees take every setting by name."""
    from asynctile.layers.plan import plan_step

    if "machine" not in inspect.signature(plan_step).parameters:
        return plan_step(config, **work, **machine)  # type: ignore[call-arg, arg-type]
    from asynctile.layers.machine import Machine, Work

    return plan_step(config, Work(**work), Machine(**machine))


def soft_gpu() -> bool:
    """Make `cuda:0` the driver of threads of the tree that is measured. Returns False where there is no g++."""
    import asynctile.device
    from tests.cuda.driver import SoftDriver

    asynctile.device.open_driver = lambda name: SoftDriver()  # type: ignore[assignment]
    return shutil.which("g++") is not None


async def record(file: Path) -> None:
    """Write the results of all cases to `file`, as JSON."""
    found, gpu = {}, soft_gpu()
    told = [(case.name(), trained, case) for case in cases(gpu)]
    told += [(f"{case.name()}, text and a checkpoint", gone_on, case) for case in going_on(gpu)]
    for name, work, case in told:
        found[name] = await work(case)
        print(f"{name}: {found[name]['bits']}", file=sys.stderr, flush=True)
    found |= planned()
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each case that is not in both records, and for each value that differs."""
    for name in sorted(old.keys() ^ new.keys()):
        yield f"{name}: only in the {'old' if name in old else 'new'} record"
    for name in sorted(old.keys() & new.keys()):
        for what in old[name]:
            if old[name][what] != new[name].get(what):
                yield f"{name}: {what} was {old[name][what]}, is {new[name].get(what)}"


def main() -> int:
    """Run the command, and return the exit status: 1 if two records differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="measure a tree")
    recording.add_argument("file", type=Path)
    recording.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    comparing = commands.add_parser("compare", help="compare two records")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        sys.path.insert(0, str(given.tree.resolve()))
        asyncio.run(record(given.file))
        return 0
    old, new = (json.loads(file.read_text(encoding="utf-8")) for file in (given.old, given.new))
    lines = list(differences(old, new))
    print("\n".join([*lines, f"{len(old)} cases, {len(lines)} differences"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
