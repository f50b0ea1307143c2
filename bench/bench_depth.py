"""Does throughput hold when the model gets deeper and the memory does not?

    python bench/bench_depth.py [--rounds 9] [--layers 4 8 16 32] [--no-others] [--write]

Models of 4 to 32 layers of one width run through one cap that holds none of them, over one link. If depth costs nothing,
tokens/s times layers is constant (target: within 3%, the slowest depth against the fastest, paired round by round). The
vocabulary is so small that the head does not count. For comparison the same engine runs the decisions of other schedulers: the
same program under plain LRU; and the order of a greedy issuer that runs the ready operation with the most of its inputs
resident (NNTile's dmdasd, from StarPU), also under LRU, because an issuer that guesses the order cannot know the next use. This
file replaces the engine's decisions for both; the product has no switch for them. Both run by coroutines.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
import statistics
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from common import Table, alternate, arguments, batch, in_turn, publish, show, target, trainer_on
from paired import CONFIDENCE, FEWEST, change

from asynctile import Engine
from asynctile.layers import GPT2Config, Trainer
from asynctile.layers.model import model_state_of
from asynctile.program.operation import Operation
from asynctile.program.program import Fetch, Mark, Program
from asynctile.share import runtime_of
from asynctile.storage.ranking import Ranking
from asynctile.storage.residency import Residency
from asynctile.storage.slot import Home

WIDTH, HEADS, LENGTH, BATCH = 384, 6, 256, 4
#: The slower direction takes this share of the deepest model's step, run in the product's order on a link without a limit.
LINK_SHARE = 0.8
OURS, LRU, GREEDY = "asynctile", "LRU", "greedy order, LRU"


def config_of(layers: int) -> GPT2Config:
    return GPT2Config(n_layer=layers, n_head=HEADS, n_embd=WIDTH, block_size=LENGTH, vocab_size=256)


class Recency(Ranking):
    """A ranking that evicts the least recently used tile and knows nothing of later uses."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: dict[Home, OrderedDict[Residency, None]] = defaultdict(OrderedDict)

    def rank(self, pool: Home, residency: Residency) -> None:
        self._recent[pool][residency] = None
        self._recent[pool].move_to_end(residency)

    def furthest(self, pool: Home, held: Any, beyond: int) -> Residency | None:
        recent = self._recent[pool]
        for one in [one for one in recent if one.slot is None or one.slot.pool is not pool]:
            del recent[one]
        return next((one for one in recent if one not in held), None)


def greedy(program: Program, pools: Sequence[tuple[int, int]]) -> Program:
    """Return a program with the same operations in the order of a greedy issuer. Dependencies and marks are kept.

    pools: (slot bytes, slots); the issuer sees an LRU cache of that size.
    """
    ordered = copy.copy(program)
    ordered.entries, ordered.marks = [], {}
    cache: list[OrderedDict[Any, None]] = [OrderedDict() for _ in pools]
    segment: list[Any] = []
    for entry in [*program.entries, None]:
        if entry is None or isinstance(entry, Mark):
            ordered.entries += _greedy_segment(segment, cache, pools)
            segment = []
            if entry is not None:
                ordered.mark(entry.name)
        else:
            segment.append(entry)
    return ordered.finish()


def _greedy_segment(entries: list[Any], cache: list[OrderedDict[Any, None]], pools: Sequence[tuple[int, int]]) -> list[Any]:
    after, blocked = _dependencies(entries)
    users: dict[Any, set[int]] = defaultdict(set)  # the ready entries that use each tile
    best: list[tuple[int, int]] = []
    current: dict[int, int] = {}  # missing bytes of each ready entry
    order = []

    def pool_of(tile: Any) -> int:
        return next(index for index, (nbytes, _) in enumerate(pools) if tile.nbytes <= nbytes)

    def rate(index: int) -> None:
        needed = {tile for tile, how in _touched(entries[index]) if how != "w"}
        current[index] = sum(tile.nbytes for tile in needed if tile not in cache[pool_of(tile)])
        heapq.heappush(best, (current[index], index))

    def make_ready(index: int) -> None:
        for tile, _ in _touched(entries[index]):
            users[tile].add(index)
        rate(index)

    for index, count in enumerate(blocked):
        if count == 0:
            make_ready(index)
    while best:
        missing, index = heapq.heappop(best)
        if current.get(index) != missing:
            continue
        del current[index]
        order.append(entries[index])
        changed = set()
        for tile, _ in _touched(entries[index]):
            users[tile].discard(index)
            held = cache[pool_of(tile)]
            if tile not in held:
                changed.add(tile)
            held[tile] = None
            held.move_to_end(tile)
            if len(held) > pools[pool_of(tile)][1]:
                changed.add(held.popitem(last=False)[0])
        for other in {user for tile in changed for user in users[tile]}:
            rate(other)
        for later in after[index]:
            blocked[later] -= 1
            if blocked[later] == 0:
                make_ready(later)
    assert len(order) == len(entries)
    return order


def _dependencies(entries: list[Any]) -> tuple[list[list[int]], list[int]]:
    """Return the entries after each entry, and how many entries each waits for.

    Reads follow writes; writes follow reads and writes.
    """
    after: list[list[int]] = [[] for _ in entries]
    blocked = [0] * len(entries)
    written: dict[Any, int] = {}
    read: dict[Any, list[int]] = defaultdict(list)
    for index, entry in enumerate(entries):
        before = set()
        for tile, how in _touched(entry):
            if tile in written:
                before.add(written[tile])
            if how == "r":
                read[tile].append(index)
            else:
                before.update(read.pop(tile, ()))
                written[tile] = index
        before.discard(index)
        blocked[index] = len(before)
        for earlier in before:
            after[earlier].append(index)
    return after, blocked


def _touched(entry: Any) -> list[tuple[Any, str]]:
    if isinstance(entry, Operation):
        return list(zip(entry.operands, entry.access, strict=True))
    return [(entry.tile, "r")] if isinstance(entry, Fetch) else []


async def open_side(
    stack: AsyncExitStack, policy: str, tile: int, layers: Sequence[int], **options: Any
) -> dict[int, Trainer]:
    """Return one trainer per depth, on one engine that decides by `policy`."""
    engine = await stack.enter_async_context(Engine(device="emulated", **options))
    if policy != OURS:
        top = runtime_of(engine).tiers.top
        top.ledger.ranking = Recency()
        engine.plays = False
    trainers = {depth: await trainer_on(engine, config_of(depth), tile=tile) for depth in layers}
    if policy == GREEDY:
        for trainer in trainers.values():
            await trainer.step(*batch(trainer.model.config, BATCH, LENGTH))
            kept = model_state_of(trainer.model).programs._kept
            key, program = next(reversed(kept.items()))  # the program of that step, with some updates on the host
            pools = [(pool.slot_nbytes, pool.limit or 0) for pool in runtime_of(engine).tiers.top.arena.pools]
            kept[key] = greedy(program, pools)
    return trainers


def side(trainer: Trainer, moved: dict[Any, float], key: Any, count: int) -> Callable[[], Awaitable[float]]:
    """Return a side that measures seconds per step.

    Each measurement first makes two steps: one loads this model's tiles, and with the next the schedule starts to be played.
    The MB loaded per layer are stored in moved[key].
    """
    tokens, targets = batch(trainer.model.config, BATCH, LENGTH)

    async def run() -> float:
        for _ in range(2):
            await trainer.step(tokens, targets)
        reports = [await trainer.step(tokens, targets) for _ in range(count)]
        moved[key] = sum(report.uploaded_bytes for report in reports) / count / trainer.model.config.n_layer / 1e6
        return sum(report.step_s for report in reports) / count

    return run


async def main() -> None:
    options = arguments(__doc__, rounds=9, steps=2, layers=(4, 8, 16, 32), tile=256, cap_mb=16, no_others=False)
    if options.rounds < FEWEST:
        raise SystemExit(f"--rounds {options.rounds} is too few for an interval of {CONFIDENCE:.0%}: give at least {FEWEST}")
    cap, layers = options.cap_mb << 20, sorted(options.layers)
    policies = [OURS] if options.no_others else [OURS, LRU, GREEDY]
    moved: dict[Any, float] = {}
    async with AsyncExitStack() as stack:
        free = await open_side(stack, OURS, options.tile, layers[-1:], device_memory=cap)
        seconds = (await alternate({"no link limit": side(free[layers[-1]], moved, "free", 1)}, 2))["no link limit"]
        rate = int(moved["free"] * 1e6 * layers[-1] / (LINK_SHARE * seconds))
        trainers = {
            (policy, depth): trainer
            for policy in policies
            for depth, trainer in (
                await open_side(stack, policy, options.tile, layers, device_memory=cap, link_rate=rate)).items()
        }  # fmt: skip
        sides = {f"{p}, {n} layers": side(t, moved, (p, n), options.steps) for (p, n), t in trainers.items()}
        found = dict(zip(trainers, (await in_turn(sides, options.rounds)).values(), strict=True))

    columns = ("layers", *policies, *(f"{name}: MB loaded a layer" for name in policies))
    table = Table("block tokens/s: tokens/s times layers", columns)
    block = {key: [BATCH * LENGTH / value * key[1] for value in values] for key, values in found.items()}
    for depth in layers:
        row = [statistics.median(block[policy, depth]) for policy in policies]
        table.rows.append((depth, *row, *(moved[policy, depth] for policy in policies)))
    worst = Table("slowest against fastest depth", ("policy", "layers", "ratio", "from", "to", "target"))
    for policy in policies:
        slow, fast = (which(layers, key=lambda n: statistics.median(block[policy, n])) for which in (min, max))
        ratio = change([one / other for one, other in zip(block[policy, slow], block[policy, fast], strict=True)])
        goal = target(ratio.median, 0.97) if policy == OURS else None
        worst.rows.append((policy, f"{slow} against {fast}", ratio.median, ratio.low, ratio.high, goal))
    configuration = {
        "model": f"GPT-2, n_embd {WIDTH}, n_head {HEADS}, vocab 256, T {LENGTH}, B {BATCH}, float32, recompute",
        "states": ", ".join(f"{show(config_of(n).states_nbytes / 1e6)} MB" for n in layers),
        "cap": f"{cap / 1e6:.1f} MB, link {rate / 1e6:.0f} MB/s each way, prefetch 2, tile {options.tile}",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps after two to settle, sides in turn; "
        f"{CONFIDENCE:.0%} interval of the median of the ratios",
    }
    publish("bench_depth", __doc__, configuration, [table, worst], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
