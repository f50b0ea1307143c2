"""Scenario `threads`: threads are refused at random while an engine opens, trains and closes; it must close with equal bits.

Most rounds plan the refusals (refusals.py). Where this process may make a pids cgroup, some rounds let the kernel refuse, in a
group with room for a few threads: `asynctile train` must succeed there, or end with one line.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.leaks import Held
from asynctile.cli.stress.models import Recipe, batch, draw_recipe, draw_training_place, expect_state, new_trainer, state_of
from asynctile.cli.stress.place import EngineSetup
from asynctile.cli.stress.refusals import Refusals
from asynctile.cli.stress.round import Round
from asynctile.errors import DeviceError
from asynctile.storage.documents import finish
from asynctile.threads import REFUSED

__all__ = ["play"]

_STEPS = 4
#: More threads than an engine asks for in a round.
_MOST = 40
#: Share of the rounds that start a program in a pids cgroup.
BY_KERNEL = 0.03
_GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_TRAIN = ("train", "--data", "text.txt", "--steps", "3", "--batch-size", "2", "--seq-len", "16", "--out", "run")
_PATIENCE_S = 100.0


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    if round.chance.random() < BY_KERNEL:
        with pids_group(round.chance.randint(1, _MOST)) as group:
            if group is not None:
                await _train_in(group, round)
                return True
    recipe = draw_recipe(round.chance)
    place = draw_training_place(round.chance, recipe)
    await round.course.follow(recipe, _STEPS)
    before = Held.now(round.spill)
    with Refusals(_draw(round.chance)).in_force() as refusals:
        try:
            await _train(round, recipe, place)
        except DeviceError as error:
            if REFUSED not in str(error):
                raise
            round.tally.reported += 1
        else:
            round.tally.survived += bool(refusals.refused)
    round.tally.faulted += bool(refusals.refused)
    round.tally.injected["thread"] += len(refusals.refused)
    before.expect_no_more(round.spill)
    return True


def _draw(chance: random.Random) -> Callable[[int, str], bool]:
    """Draw which threads are refused: one, some, or all from one on."""
    kind, number, share = chance.choice(("one", "some", "rest")), chance.randrange(_MOST), chance.choice((0.02, 0.1, 0.5))
    if kind == "some":
        return lambda *_: chance.random() < share
    return lambda index, _: index == number if kind == "one" else index >= number


async def _train(round: Round, recipe: Recipe, place: EngineSetup) -> None:
    states, reports = await round.course.follow(recipe, _STEPS)
    async with round.engine(place) as engine:
        trainer = await new_trainer(engine, recipe, place.update, round.tally)
        for number in range(1, _STEPS + 1):
            report = await trainer.step(*batch(number))
            if (report.loss, report.grad_norm) != reports[number - 1]:
                raise Finding("lost", f"step {number} reported loss {report.loss!r} and norm {report.grad_norm!r}, which are "
                                      f"{reports[number - 1]!r} if no thread is refused")
        await trainer.save(round.folder / "checkpoint", wait=round.chance.random() < 0.5)
        await trainer.saved()
        expect_state(await state_of(trainer), states[_STEPS], f"after step {_STEPS}")
        await trainer.model.release()


@contextmanager
def pids_group(most: int) -> Iterator[Path | None]:
    """Make a group of at most `most` threads and yield the file that processes join by; None if this process may make none."""
    for root in _GROUPS:
        group = root / f"asynctile-stress-{os.getpid()}"
        try:
            group.mkdir()
            try:
                (group / "pids.max").write_text(str(most))
            except OSError:  # a hierarchy without that controller
                group.rmdir()
                raise
        except OSError:
            continue
        try:
            yield group / "cgroup.procs"
        finally:
            group.rmdir()
        return
    yield None


async def _train_in(group: Path, round: Round) -> None:
    (round.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    join = f"import os, sys; open({str(group)!r}, 'w').write(str(os.getpid())); os.execv(sys.executable, sys.argv[1:])"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", join, sys.executable, "-m", "asynctile", *_TRAIN,
        cwd=round.folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        _, said = await asyncio.wait_for(process.communicate(), _PATIENCE_S)
    except TimeoutError:
        raise Finding("hung", f"asynctile train in a pids cgroup was not done after {_PATIENCE_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await finish(process.wait())
    if (process.returncode, said) != (0, b"") and (process.returncode != 2 or said.count(b"\n") != 1):
        raise Finding("failed", f"asynctile train in a pids cgroup ended with {process.returncode} and said {said[-300:]!r}")
    round.tally.survived += process.returncode == 0
    round.tally.reported += process.returncode == 2
    round.tally.faulted += 1
