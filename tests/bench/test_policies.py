"""Rival policies: what they must move they move, no cap is exceeded, and StarPU's rule places operations as it says."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import PlannedStep, planned_step
from asynctile.measure.costs import EntryCosts
from asynctile.measure.simulate import simulate
from asynctile.program.grain import grain_of
from asynctile.program.operation import HOST, READ, WRITE, Operation, device_named
from asynctile.program.program import Program
from asynctile.schedule.decide import Cut, Space, decide
from asynctile.schedule.rates import CORES
from asynctile.schedule.schedule import RAM, Kind, Scheduled, tier_of
from asynctile.storage.tile import Tile
from tests.schedule.made import KINDS, program_by

#: The policies, as (file, function).
POLICIES = {"LRU": ("least_recent", "moves_by_recency"), "layers": ("layer_by_layer", "moves_by_layer"),
            "greedy": ("dmdasd", "moves_by_greed")}  # fmt: skip
#: The kinds of entries of a random program; the host rewrites nothing at a mark.
KINDS_HERE = [kind for kind in KINDS if kind != "mark"]
COSTS = EntryCosts(rates=CORES, devices=2)


def moves_of(bench: Any, policy: str, program: Program, cap: int, steps: int, devices: int = 1) -> Any:
    file, name = POLICIES[policy]
    function = getattr(bench(f"policies.{file}"), name)
    if policy == "greedy":
        function = partial(function, costs=EntryCosts(rates=CORES, devices=devices))
    return function(program, cap, steps=steps)


def drawn(chance: random.Random, devices: int = 1, kinds: list[str] = KINDS_HERE, **options: Any) -> Program:
    """Draw a program whose operations are spread over devices, the last one among them, and write no input."""
    one = program_by(chance, kinds=kinds, **options)
    program = Program("by chance")
    program.inputs, program.temporaries = one.inputs, one.temporaries
    for entry in one.entries:
        if isinstance(entry, Operation):
            access = [READ if tile.name in one.inputs else how for tile, how in zip(entry.tiles, entry.access, strict=True)]
            name = entry.device if entry.device == HOST else device_named(chance.randrange(devices))
            program.add(Operation("none", entry.operands, "".join(access), device=name))
        else:
            program.fetch(entry.tiles[0], f"y{len(program.fetches)}", ())
    program.add(Operation("none", (program.input("last", (1,), np.uint8),), READ, device=device_named(devices - 1)))
    return program.finish()


def largest(program: Program) -> int:
    return max(sum(tile.nbytes for tile in set(entry.tiles)) for entry in program.entries)


def every(program: Program) -> int:
    return sum(tile.nbytes for tile in {tile for entry in program.entries for tile in entry.tiles})


@dataclass
class Copies:
    """Where the bytes of one tile are: by tier, the version there, the entry that made it, and its users since."""

    latest: int = 0
    there: dict[int, int] = field(default_factory=lambda: {RAM: 0})
    made: dict[int, int] = field(default_factory=dict)
    used: dict[int, set[int]] = field(default_factory=dict)


class Replay:
    """Carries out moves that begin with everything in RAM, at given times, and checks each entry."""

    def __init__(self, moves: Any, begins: list[float], ends: list[float]) -> None:
        self.entries, self.begins, self.ends = moves.entries, begins, ends
        self.arrivals = {(tier_of(stay.device), stay.tile, stay.first) for stay in moves.stays}
        self.tiles: dict[Tile, Copies] = {}

    def run(self) -> None:
        for number, entry in enumerate(self.entries):
            assert all(earlier < number for earlier in (*entry.waits, *entry.after))
            if isinstance(entry.what, Operation):
                self._operation(number, entry, entry.what)
                continue
            to, source = (place.tier for place in entry.places)
            self._read(number, entry.what, source)
            if entry.kind is not Kind.FETCH:
                self._write(number, entry.what, to)

    def _operation(self, number: int, entry: Scheduled, operation: Operation) -> None:
        tier = entry.places[0].tier
        letters = dict.fromkeys(operation.tiles, "")
        for tile, letter in zip(operation.tiles, operation.access, strict=True):
            letters[tile] += letter
        for tile, how in letters.items():
            if set(how) != {WRITE}:
                self._read(number, tile, tier)
        for tile, how in letters.items():
            if set(how) != {READ}:
                self.copies(tile).latest += 1
                self._write(number, tile, tier)

    def copies(self, tile: Tile) -> Copies:
        return self.tiles.setdefault(tile, Copies())

    def _read(self, number: int, tile: Tile, tier: int) -> None:
        copies = self.copies(tile)
        assert copies.there.get(tier) == copies.latest, f"{tile} at {tier} in {self.entries[number]}"
        if tier in copies.made:
            assert self.ends[copies.made[tier]] <= self.begins[number]
        copies.used.setdefault(tier, set()).add(number)

    def _write(self, number: int, tile: Tile, tier: int) -> None:
        copies = self.copies(tile)
        before = copies.used.pop(tier, set()) | ({copies.made[tier]} if tier in copies.made else set())
        if (tier, tile, number) not in self.arrivals:  # it is written where it was
            assert all(self.ends[earlier] <= self.begins[number] for earlier in before - {number})
        copies.there[tier], copies.made[tier] = copies.latest, number


def check_cap(moves: Any, cap: int, devices: int, begins: list[float], ends: list[float]) -> None:
    """Check that tiles never take more than the cap of a device, at the times at which a clock ran the entries."""
    for device in range(devices):
        changes = []
        for stay in moves.stays:
            if stay.device == device:
                first = 0.0 if stay.first < 0 else begins[stay.first]
                last = max([first, *(ends[entry] for entry in stay.last)])
                changes += [(first, 1, stay.tile.nbytes), (last, 0, -stay.tile.nbytes)]
        taken = 0
        for _, _, nbytes in sorted(changes):
            taken += nbytes
            assert taken <= cap


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_read_sees_its_bytes_and_no_cap_is_exceeded(bench: Any, policy: str, devices: int) -> None:
    ran = 0
    for seed in range(120):
        chance = random.Random(seed)
        program = drawn(chance, devices)
        cap = chance.randint(largest(program), 2 * every(program))
        try:
            moves = moves_of(bench, policy, program, cap, 1, devices)
        except ValueError:
            assert policy == "layers", "only two buffers may be too large"
            continue
        ran += 1
        schedule = moves.schedule()
        clock = EntryCosts(rates=CORES, devices=devices).timeline(schedule)
        Replay(moves, clock.begins, clock.ends).run()
        check_cap(moves, cap, devices, clock.begins, clock.ends)
        done = sorted(str(entry.what) for entry in schedule.entries if isinstance(entry.what, Operation))
        assert done == sorted(map(str, program.operations()))
    assert ran > 20


@pytest.mark.parametrize("policy", POLICIES)
def test_a_second_step_begins_where_the_first_ended(bench: Any, policy: str) -> None:
    weights = [Tile(f"w{n}", (8,), np.uint8, persistent=True) for n in range(3)]
    program = Program("steady")
    for tile in weights:
        program.add(Operation("none", (tile,), READ))
    program.finish()
    moved = bench("policies.moves").moved
    first, second = (moved(moves_of(bench, policy, program, 64, steps).schedule())[Kind.UPLOAD] for steps in (1, 2))
    assert first == 24 and second == 0


def test_lru_moves_at_least_the_least_bytes_and_the_plan_fewer_in_sum(bench: Any) -> None:
    """The plan may move more for one program: it needs a place for each byte, and LRU has memory without addresses here."""
    moved, least_recent = bench("policies.moves").moved, bench("policies.least_recent").least_recent
    sums, more = [0, 0], 0
    for seed in range(200):
        chance = random.Random(seed)
        program = drawn(chance, sizes=(64, 128, 192), kinds=["operation"])
        cap = chance.randint(largest(program), max(largest(program), every(program)))
        planned = decide(program, Space(Cut(64, cap, {}), Cut(64, None, {}), None, 0, CORES))
        if planned is None:
            continue
        theirs = moved(least_recent(program, cap))
        assert theirs[Kind.UPLOAD] >= bench("optimum").least_bytes(program, cap).uploaded_nbytes
        both = [found[Kind.UPLOAD] + found[Kind.DOWNLOAD] for found in (moved(planned), theirs)]
        sums = [one + other for one, other in zip(sums, both, strict=True)]
        more += both[0] > both[1]
    assert sums[0] < 0.85 * sums[1] and more < 32


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_the_plan_of_a_training_step_moves_no_more_bytes_than_lru(bench: Any, share: float) -> None:
    moved, least_recent = bench("policies.moves").moved, bench("policies.least_recent").least_recent
    cap = int(share * 10 * (1 << 20))
    made = planned(1, cap)
    traffic = simulate(made.program, made.standing, device="cuda:0", device_memory=cap, grain=grain_of("cuda:0"))
    theirs = moved(least_recent(made.program, cap))
    assert 0 < traffic.uploaded_nbytes <= theirs[Kind.UPLOAD]


def planned(devices: int, cap: int) -> PlannedStep:
    config = GPT2Config(n_layer=3, n_head=2, n_embd=256, block_size=64, vocab_size=256)
    machine = Machine(device=f"cuda:0-{devices - 1}" if devices > 1 else "cuda:0", precision="tf32", device_memory=cap)
    return planned_step(config, Work(batch_size=4, seq_len=64, replicas=devices, tile=128), machine)


def step(devices: int, cap: int) -> Program:
    return planned(devices, cap).program


@pytest.mark.parametrize("policy", POLICIES)
def test_a_training_step_on_two_devices_runs_whole(bench: Any, policy: str) -> None:
    cap = 16 << 20 if policy == "layers" else 6 << 20
    program = step(2, cap)
    moves = moves_of(bench, policy, program, cap, 1, 2)
    schedule = moves.schedule()
    clock = COSTS.timeline(schedule)
    Replay(moves, clock.begins, clock.ends).run()
    check_cap(moves, cap, 2, clock.begins, clock.ends)
    assert sum(isinstance(entry.what, Operation) for entry in schedule.entries) == len(list(program.operations()))
    assert clock.seconds > 0


def test_two_buffers_that_are_too_large_are_refused(bench: Any) -> None:
    program = step(1, 6 << 20)
    with pytest.raises(ValueError, match="2 buffers for a layer of 7642112 bytes exceed 1048576"):
        bench("policies.layer_by_layer").layer_by_layer(program, 1 << 20)


def test_a_layer_leaves_when_it_is_done_even_where_all_would_fit(bench: Any) -> None:
    program, moved = step(1, 64 << 20), bench("policies.moves").moved
    layers = moved(bench("policies.layer_by_layer").layer_by_layer(program, 64 << 20))
    lru = moved(bench("policies.least_recent").least_recent(program, 64 << 20))
    weights = sum(tile.nbytes for tile in program.standing if tile.name not in program.inputs)
    assert lru[Kind.UPLOAD] < weights / 10 < weights < layers[Kind.UPLOAD]


def order_of(bench: Any, devices: int, *operations: str) -> list[tuple[str, int]]:
    """Return what dmdasd does: the first operand of each operation, and its device, in the order of decisions.

    operations: the names of the operands; the first is overwritten, the others are read. Capitals are 100 times as large.
    Each takes 5 ms, more than any transfer.
    """
    program, tiles = Program("by hand"), dict[str, Tile]()
    for names in operations:
        for name in names:
            tiles.setdefault(name, Tile(name, (100_000 if name.isupper() else 1000,), np.uint8, persistent=True))
        operands = tuple(tiles[name] for name in names)
        program.add(Operation("none", operands, "w" + "r" * (len(names) - 1), flops=int(1e9)))
    moves = moves_of(bench, "greedy", program.finish(), 1_000_000, 1, devices)
    return [(entry.what.operands[0].name, entry.device) for entry in moves.entries if isinstance(entry.what, Operation)]


def test_dmdasd_puts_equal_work_on_both_devices_and_what_follows_where_its_bytes_are(bench: Any) -> None:
    assert order_of(bench, 2, "xa", "yb") == [("x", 0), ("y", 1)]
    assert order_of(bench, 2, "xa", "YB", "zY") == [("x", 0), ("Y", 1), ("z", 1)]


def test_dmdasd_takes_the_operation_with_the_fewest_bytes_missing_first(bench: Any) -> None:
    assert [name for name, _ in order_of(bench, 1, "xa", "yB", "za")] == ["x", "z", "y"]


def test_dmdasd_refuses_a_program_that_rewrites_its_inputs(bench: Any) -> None:
    program = Program("marked")
    scale = program.input("scale", (1,), np.uint8)
    program.mark("m", [scale])
    program.add(Operation("none", (scale,), READ))
    with pytest.raises(ValueError, match="rewrites inputs at a mark"):
        moves_of(bench, "greedy", program.finish(), 8, 1)
