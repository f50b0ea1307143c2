"""A packing that was kept is the one that was found; a file that is damaged, foreign or wrong is made anew."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asynctile.cli.stress.writer import write_program
from asynctile.kernels.cpu import cache_folder
from asynctile.program.operation import Operation
from asynctile.program.program import Mark, Program
from asynctile.repeat import packing_files
from asynctile.schedule.clock import CORES, GPU, Pace
from asynctile.schedule.packing import Packing, pack
from asynctile.storage.demand import ALIGNMENT
from asynctile.storage.tile import Tile


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where packings are kept, of programs of every length."""
    monkeypatch.setattr(packing_files, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(packing_files, "FEWEST", 0)
    return tmp_path / packing_files.FOLDER


@pytest.fixture
def count(monkeypatch):
    """How many were worked out."""
    calls = []

    def counted(*args, **how):
        calls.append(args)
        return pack(*args, **how)

    monkeypatch.setattr(packing_files, "pack", counted)
    return lambda: len(calls)


def step() -> tuple[Program, int]:
    """As another process would record it, and a cap for it."""
    work = write_program(random.Random(3))
    return work.program, (work.demand.floor_nbytes + work.demand.resident_nbytes) // 2


def packed(program: Program, cap: int, *, pace: Pace = CORES, depth: int = 2, has_link: bool = True) -> Packing | None:
    return packing_files.packed(program, cap, alignment=ALIGNMENT, pace=pace, depth=depth, has_link=has_link)


def told(packing: Packing | None) -> object:
    """All that a packing says, in the order in which it does, by names of tiles."""
    if packing is None:
        return None
    return (
        [(tile.name, offset) for tile, offset in packing.start.items()],
        [[(act, tile.name, offset) for act, tile, offset in moves] for moves in packing.moves],
        [(entry, [(tile.name, offset) for tile, offset in born]) for entry, born in packing.births.items()],
        packing.cap, packing.alignment, packing.peak_nbytes,
    )  # fmt: skip


def the_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def digested(key: bytes, numbers: bytes) -> bytes:
    """A file with the digest that it must have, as somebody would write it who wants these numbers read."""
    return hashlib.sha256(key + numbers).digest() + numbers


@pytest.mark.parametrize("has_link", [True, False], ids=["over a link", "in RAM"])
def test_what_was_kept_is_read_for_the_same_step_recorded_again(folder, count, has_link):
    found, again = (packed(*step(), has_link=has_link) for _ in range(2))
    assert count() == 1 and found is not None and again is not None
    assert told(found) == told(again) == told(pack(*step(), alignment=ALIGNMENT, pace=CORES, depth=2, has_link=has_link))
    assert again.program is not found.program and set(again.start) <= set(again.program.standing)


def test_that_there_is_none_is_kept_as_well(folder, count):
    program, _ = step()
    assert packed(program, ALIGNMENT) is None and packed(program, ALIGNMENT) is None
    assert count() == 1


def test_each_question_has_its_own_answer(folder, count):
    program, cap = step()
    packed(program, cap)
    packed(program, cap + 1)  # no more than that in multiples of the alignment
    assert count() == 1
    packed(program, cap + ALIGNMENT)
    packed(program, cap, pace=GPU)
    packed(program, cap, depth=3)
    packed(program, cap, has_link=False)
    assert count() == len(list(folder.iterdir())) == 5


def test_other_code_reads_none_of_it(folder, count, monkeypatch):
    packed(*step())
    monkeypatch.setattr(packing_files, "STAMP", b"of other sources")
    packed(*step())
    assert count() == 2
    monkeypatch.setattr(packing_files, "STAMP", b"")  # they cannot be read
    packed(*step())
    assert count() == 3 and len(list(folder.iterdir())) == 2


def test_the_stamp_is_that_of_every_source_of_schedules(tmp_path):
    (tmp_path / "a.py").write_text("one")
    before = packing_files._stamp(tmp_path)
    (tmp_path / "b.py").write_text("two")
    after = packing_files._stamp(tmp_path)
    (tmp_path / "b.py").write_text("three")
    assert len({before, after, packing_files._stamp(tmp_path)}) == 3
    (tmp_path / "c.py").mkdir()
    assert packing_files._stamp(tmp_path) == b""


def nothing_else(*_):
    raise AssertionError("a packing depends on what its key does not hold")


class Untold(Operation):
    """An operation of which only what the key holds can be asked."""

    kernel = params = number = property(nothing_else, lambda *_: None)


@pytest.mark.parametrize("seed", range(6))
def test_a_packing_is_a_function_of_what_its_key_holds(seed):
    """`pack` asks a program for nothing else, and gets the same of one that differs in all else."""
    work = write_program(random.Random(seed))
    program, demand = work.program, work.demand
    others = {tile: Tile("", (tile.nbytes,), np.uint8, persistent=tile.persistent) for tile in
              [*program.standing, *program.inputs.values(), *program.temporaries]}  # fmt: skip
    bare = Program("")
    bare.inputs = {str(n): others[tile] for n, tile in enumerate(program.inputs.values())}
    bare.temporaries = [others[tile] for tile in program.temporaries]
    for entry in program.entries:
        if isinstance(entry, Operation):
            bare.add(Untold("", tuple(others[tile] for tile in entry.tiles), entry.access, (), entry.flops, None, entry.device))
        elif isinstance(entry, Mark):
            bare.mark(entry.name, [others[tile] for tile in program.rewritten[entry.name]])
        else:
            bare.fetch(others[entry.tile], "", ())
    bare.finish()
    how = {"alignment": ALIGNMENT, "pace": CORES, "depth": 2, "has_link": True}
    cap = (demand.floor_nbytes + demand.resident_nbytes) // 2
    one, other = pack(program, cap, **how), pack(bare, cap, **how)
    keys = [packing_files._key(packing_files.Uses(one_of, ALIGNMENT, True), (cap,)) for one_of in (program, bare)]
    assert keys[0] == keys[1]
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        translated = [[(act, others[tile], offset) for act, tile, offset in moves] for moves in one.moves]
        assert translated == [[*map(tuple, moves)] for moves in other.moves]
        assert [others[tile] for tile in one.start] == list(other.start)


@pytest.mark.parametrize("change", ["flops", "size", "access", "persistent", "order", "device"])
def test_any_change_of_a_step_is_another_question(change):
    def program(changed: str) -> Program:
        made = Program("p")
        weight = Tile("w", (8 if changed == "size" else 4,), np.uint8, persistent=True)
        x = Tile("x", (4,), np.uint8, persistent=True) if changed == "persistent" else made.tile("x", (4,), np.uint8)
        y = made.tile("y", (4,), np.uint8)
        first = Operation("none", (weight, x), "uw" if changed == "access" else "rw", flops=7 if changed == "flops" else 0)
        second = Operation("none", (y,), "w")
        for operation in (second, first) if changed == "order" else (first, second):
            made.add(replace(operation, device="host") if changed == "device" else operation)
        return made.finish()

    keys = [packing_files._key(packing_files.Uses(program(changed), 64, True), ()) for changed in ("", "", change)]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("how", ["truncated", "empty", "longer", "flipped", "of another step", "a folder", "half a number"])
def test_a_damaged_file_is_made_anew(folder, count, how):
    found = packed(*step())
    path, content = the_file(folder), the_file(folder).read_bytes()
    if how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "half a number":
        path.write_bytes(digested(bytes.fromhex(path.stem), content[32:-3]))
    elif how == "of another step":
        program, cap = step()
        packed(program, cap + ALIGNMENT)
        (other,) = set(folder.iterdir()) - {path}
        other.replace(path)
    else:
        damaged = {"truncated": content[:-8], "empty": b"", "longer": content + bytes(8),
                   "flipped": content[:200] + bytes([content[200] ^ 1]) + content[201:]}  # fmt: skip
        path.write_bytes(damaged[how])
    before = count()
    assert told(packed(*step())) == told(found)
    assert count() == before + 1
    if how != "a folder":
        assert path.read_bytes() == content
        assert told(packed(*step())) == told(found) and count() == before + 1


def test_numbers_by_which_no_step_could_run_are_not_used(folder):
    """Each number in turn is put wrong, digest and all."""
    program, cap = step()
    packed(program, cap)
    content, chance, refused = the_file(folder).read_bytes(), random.Random(1), 0
    key, numbers = bytes.fromhex(the_file(folder).stem), np.frombuffer(content[32:], "<i8")
    uses = packing_files.Uses(program, ALIGNMENT, True)
    cap -= cap % ALIGNMENT

    def is_used(place: int, value: int) -> bool:
        wrong = numbers.copy()
        wrong[place] = value
        try:
            return packing_files._decoded(digested(key, wrong.tobytes()), key, uses, cap, ALIGNMENT) is not None
        except ValueError:
            return False

    assert is_used(0, int(numbers[0]))
    places = [0, 1, 2, 3, *chance.sample(range(4, len(numbers)), 100)]
    for place in places:
        assert not is_used(place, -1) and not is_used(place, 1 << 62)
        refused += not is_used(place, int(numbers[place]) + 1)  # some are another packing, by which a step could run
    assert refused > 0.9 * len(places)


def test_short_programs_are_neither_kept_nor_looked_for(folder, count, monkeypatch):
    program, cap = step()
    monkeypatch.setattr(packing_files, "FEWEST", len(program) + 1)
    packed(program, cap)
    assert not folder.exists()
    monkeypatch.setattr(packing_files, "FEWEST", len(program))
    packed(program, cap)
    assert len(list(folder.iterdir())) == 1


def test_where_kernels_are_not_kept_packings_are_not_either(monkeypatch, count):
    monkeypatch.setattr(packing_files, "cache_folder", lambda: None)
    monkeypatch.setattr(packing_files, "FEWEST", 0)
    assert packed(*step()) is not None and packed(*step()) is not None
    assert count() == 2


def test_it_stands_beside_the_kernels_where_numba_is_told(tmp_path):
    assert cache_folder() is not None
    environment = dict(os.environ, NUMBA_CACHE_DIR=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path))
    code = "from asynctile.repeat.packing_files import _cache; print(_cache().path)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    assert path.name == "packings" and path.parent.parent == tmp_path
