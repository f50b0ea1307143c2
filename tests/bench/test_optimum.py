"""The least bytes that a step can move, against every possible schedule of tiny programs and against real runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers import GPT2Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.measure.simulate import simulate
from asynctile.program.needs import demand_of
from asynctile.program.operation import DEVICE, HOST, READ, WRITE, Operation
from asynctile.program.program import Mark, Program
from asynctile.storage.tile import Tile
from tests.laws import examples

#: For one tile: bytes in RAM and on the device, bytes on the device alone, bytes lost. The rest are in RAM alone.
Bytes = tuple[int, int, int]
#: Number of entries done, and the bytes of each tile.
State = tuple[int, tuple[Bytes, ...]]
UP, DOWN = "up", "down"


class Schedules:
    """Every possible schedule of a program's bytes: each byte is loaded, evicted and written back alone, at any time.

    steps: number of steps in a row. counted: the moves that cost one a byte, UP or DOWN.
    """

    def __init__(self, program: Program, tiles: list[Tile], cap: int, steps: int, counted: str) -> None:
        self.entries, self.tiles, self.cap, self.counted = program.entries * steps, tiles, cap, counted
        self.inputs, self.rewritten, self.length = list(program.inputs.values()), program.rewritten, len(program)
        self.nothing = self.between_steps(((0, 0, 0),) * len(tiles))

    def from_the_best(self) -> int:
        """Return the least bytes if any chosen bytes are on the device before the first step."""
        return min(cost for (at, _), cost in self.costs((-1, self.nothing)).items() if at == len(self.entries))

    def repeated(self) -> int:
        """Return the least bytes if the last step ends in the state in which the first one began."""
        ends = [stand for at, stand in self.costs((0, self.nothing)) if at == len(self.entries)]
        found = (self.costs((0, stand)).get((len(self.entries), stand)) for stand in ends)
        return min(cost for cost in found if cost is not None)

    def costs(self, begin: State) -> dict[State, int]:
        """Return the least cost of every state reachable from `begin`, by 0-1 breadth-first search."""
        found, ahead, done = {begin: 0}, deque([begin]), set[State]()
        while ahead:
            state = ahead.popleft()
            if state in done:
                continue
            done.add(state)
            for cost, after in self.moves(state):
                if found[state] + cost < found.get(after, 1 << 30):
                    found[after] = found[state] + cost
                    (ahead.append if cost else ahead.appendleft)(after)
        return found

    def moves(self, state: State) -> Iterator[tuple[int, State]]:
        at, stand = state
        standing = sum(both + alone for both, alone, _ in stand)
        for index, (both, alone, lost) in enumerate(stand):
            def put(*now: int, index: int = index) -> State:
                return at, (*stand[:index], now, *stand[index + 1 :])  # type: ignore[return-value]

            if both + alone + lost < self.tiles[index].nbytes and standing < self.cap:
                yield (self.counted == UP and at >= 0), put(both + 1, alone, lost)
            if alone:
                yield (self.counted == DOWN), put(both + 1, alone - 1, lost)
                yield 0, put(both, alone - 1, lost + 1)
            if both:
                yield 0, put(both - 1, alone, lost)
        if at == -1:
            yield 0, (0, self.between_steps(stand))
        elif at < len(self.entries) and (after := self.after(at, stand)) is not None:
            yield 0, (at + 1, self.between_steps(after) if (at + 1) % self.length == 0 else after)

    def between_steps(self, stand: tuple[Bytes, ...]) -> tuple[Bytes, ...]:
        """Return the state between steps: no temporary has bytes anywhere, and the host has written the inputs."""
        now = zip(self.tiles, self.written_by_host(stand, self.inputs), strict=True)
        return tuple(there if tile.persistent else (0, 0, tile.nbytes) for tile, there in now)

    def written_by_host(self, stand: tuple[Bytes, ...], tiles: Collection[Tile]) -> tuple[Bytes, ...]:
        return tuple((0, 0, 0) if tile in tiles else now for tile, now in zip(self.tiles, stand, strict=True))

    def after(self, at: int, stand: tuple[Bytes, ...]) -> tuple[Bytes, ...] | None:
        """Return the state after this entry, or None if the entry cannot run now."""
        entry = self.entries[at]
        if isinstance(entry, Mark):
            return self.written_by_host(stand, self.rewritten[entry.name])
        now = dict(zip(self.tiles, stand, strict=True))
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            both, alone, lost = now[tile]
            elsewhere = alone + lost if entry.device == HOST else tile.nbytes - both - alone
            if how != WRITE and elsewhere:
                return None
            if how != READ:
                now[tile] = (0, tile.nbytes, 0) if entry.device == DEVICE else (0, 0, 0)
        fits = sum(both + alone for both, alone, _ in now.values()) <= self.cap
        return tuple(now[tile] for tile in self.tiles) if fits else None


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[Tile], int]:
    """Draw a program of up to seven entries over four tiles, and a cap."""
    program = Program("tiny")
    large = draw(st.integers(0, 5))  # at most one tile of two bytes
    sizes = [1 + (index == large) for index in range(4)]
    tiles = [Tile(name, (size,), np.uint8, persistent=True) for name, size in zip("vw", sizes[:2], strict=True)]
    tiles += [program.input("x", (sizes[2],), np.uint8), program.tile("t", (sizes[3],), np.uint8)]
    written = set(tiles[:3])
    for number in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(["device"] * 6 + ["host", "host", "fetch", "mark"]))
        used = draw(st.lists(st.sampled_from(tiles), min_size=1, max_size=3))
        access = "".join(draw(st.sampled_from("ru" if used.count(tile) > 1 else "ruw")) for tile in used)
        if kind == "mark":
            program.mark(f"m{number}", [tiles[2]])
        elif kind == "fetch" and used[0] in written:
            program.fetch(used[0], "y", ())
        else:
            new = [(tile, how if tile in written else WRITE) for tile, how in zip(used, access, strict=True)]
            new = new if len(set(used)) == len(used) or set(used) <= written else list(dict(new).items())
            program.add(Operation("any", tuple(tile for tile, _ in new), "".join(how for _, how in new),
                                  device=HOST if kind == "host" else DEVICE))  # fmt: skip
            written.update(used)
    needed = max(sum(tile.nbytes for tile in set(entry.tiles)) for entry in program.entries)
    return program.finish(), tiles, draw(st.integers(max(needed, 1), sum(tile.nbytes for tile in tiles)))


@examples(15)
@given(programs())
def test_no_repeating_schedule_of_a_tiny_program_moves_fewer_bytes(bench: Any, made: Any) -> None:
    program, tiles, cap = made
    up, down = (Schedules(program, tiles, cap, 1, counted).repeated() for counted in (UP, DOWN))
    for steps in (1, 2, 5):
        least = bench("optimum").least_bytes(program, cap, steps)
        assert least.uploaded_nbytes <= up
        assert least.downloaded_nbytes <= down


@examples(20)
@given(programs(), st.integers(1, 2))
def test_some_schedule_of_a_tiny_program_loads_no_more_bytes(bench: Any, made: Any, steps: int) -> None:
    """The schedule runs steps in a row, and its first and last state cost nothing."""
    program, tiles, cap = made
    up = Schedules(program, tiles, cap, steps, UP).from_the_best()
    assert up <= bench("optimum").least_bytes(program, cap, steps).uploaded_nbytes * steps


#: Entries as tiles and access, "!" for the host's, tiles of two bytes, and the cap.
REACHED = {
    "what is furthest leaves in part": ("v:r w:r t:w tv:rr w:r", 5),
    "what the host reads comes down once": ("t:w vw:rr t:r !t:r", 4),
    "what the host writes is loaded again": ("v:r w:u !v:u v:r w:r !w:w", 3),
    "what is overwritten unread is lost for nothing": ("v:w w:u v:w w:r v:r w:w", 2),
    "every use of what was written counts until others take its place": ("v:w w:r v:r w:u v:u w:u v:r", 3),
    "two at once must fit": ("vw:rr t:w vt:uu w:u", 5),
}


@pytest.mark.parametrize("name", REACHED)
def test_some_repeating_schedule_reaches_both_minima(bench: Any, name: str) -> None:
    text, cap = REACHED[name]
    program = Program(name)
    tiles = [Tile(letter, (2,), np.uint8, persistent=True) for letter in "vw"] + [program.tile("t", (2,), np.uint8)]
    named = {tile.name: tile for tile in tiles}
    for entry in text.split():
        operands, access = entry.strip("!").split(":")
        device = HOST if entry.startswith("!") else DEVICE
        program.add(Operation("any", tuple(map(named.__getitem__, operands)), access, device=device))
    up, down = (Schedules(program.finish(), tiles, cap, 1, counted).repeated() for counted in (UP, DOWN))
    least = bench("optimum").least_bytes(program, cap, 40)
    assert (least.uploaded_nbytes, least.downloaded_nbytes) == (up, down)
    assert up + down > 0


CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=32, vocab_size=100)


def step(update: str) -> tuple[Program, list[Tile]]:
    """Return a training step and its persistent tiles.

    update: where updates run, "device" or "host"; "half" puts every second tile on the host.
    """
    parameters = Parameters(CONFIG, Tiling(CONFIG, 32))
    standing = list(parameters.states())
    on_host = frozenset({"device": [], "host": standing, "half": standing[::2]}[update])
    return record("step", parameters, parameters.tiling.rows(2, 32), on_host=on_host), standing


@pytest.mark.parametrize("update", ["device", "host", "half"])
def test_no_run_moves_fewer_bytes_under_any_cap_and_none_many_more(bench: Any, update: str) -> None:
    program, standing = step(update)
    demand, moved = demand_of([program], standing), list[tuple[int, int]]()
    for share in (0, 0.1, 0.25, 0.5, 1):
        cap = demand.floor_nbytes + int(share * (demand.resident_nbytes - demand.floor_nbytes))
        least = bench("optimum").least_bytes(program, cap)
        traffic = simulate(program, standing, device_memory=cap)
        assert least.uploaded_nbytes <= traffic.uploaded_nbytes
        assert least.downloaded_nbytes <= traffic.downloaded_nbytes
        moved.append((least.uploaded_nbytes, traffic.uploaded_nbytes))
    assert all(loaded < 1.4 * least for least, loaded in moved)


def test_operands_larger_than_the_cap_are_refused(bench: Any) -> None:
    program, _ = step("device")
    most = max(sum(tile.nbytes for tile in set(entry.tiles)) for entry in program.entries)
    assert bench("optimum").least_bytes(program, most).uploaded_nbytes
    with pytest.raises(ValueError, match=f"operands of {most} bytes, the cap is {most - 1}"):
        bench("optimum").least_bytes(program, most - 1)


def test_the_load_limit_of_a_step_is_that_of_the_next_smaller_cap(bench: Any) -> None:
    most = bench("optimum").most_at
    assert [most(share) for share in (0.05, 0.1, 0.2, 0.25, 0.5, 0.9)] == [None, 1.4, 1.4, 1.25, 1.15, 1.15]
