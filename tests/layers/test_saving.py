"""Saving: beside the training, and on a disk that fails.

test_checkpoint.py tests the content of a checkpoint and reading it, test_step_failures.py that a failed step leaves it alone,
tests/storage the files and folders beneath, also under a kill.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile import CheckpointError, Engine
from asynctile.layers import GPT2, Trainer
from asynctile.share import runtime_of
from asynctile.storage.sizes import format_size
from asynctile.storage.tensors import TensorWriter
from tests.laws import covering
from tests.layers.saving import BATCHES, DEVICES, FILES, bytes_of, trainer_on
from tests.layers.training import NARROW


@pytest.fixture(params=DEVICES.values(), ids=DEVICES.keys())
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


class Lent:
    """The bytes that `engine` has lent and not got back, and their maximum."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._caps, self.most = runtime_of(engine).tiers.caps, 0
        borrow = runtime_of(engine).tiers.caps.borrow

        def borrowing(nbytes: int, who: str) -> Any:
            loan = borrow(nbytes, who)
            self.most = max(self.most, self.nbytes)
            return loan

        monkeypatch.setattr(runtime_of(engine).tiers.caps, "borrow", borrowing)

    @property
    def nbytes(self) -> int:
        return self._caps.host.arena.lent_nbytes


class SlowDisk:
    """A disk that holds every write of a tensor until `go`; `reached` is set once a write is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.reached = threading.Event(), asyncio.Event()
        loop, write = asyncio.get_running_loop(), TensorWriter.write

        def held(writer: TensorWriter, *args: Any) -> None:
            loop.call_soon_threadsafe(self.reached.set)
            # A cancelled writer finishes its current piece, so it must not hang for good.
            self.go.wait(1)
            write(writer, *args)

        monkeypatch.setattr(TensorWriter, "write", held)


async def test_a_save_beside_training_has_the_step_of_its_request(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(**options) as engine:
        trainer, lent = await trainer_on(engine, steps=2), Lent(engine, monkeypatch)
        trainer.data_state = {"at": [2]}
        await trainer.save(tmp_path / "at once")
        assert lent.most == 0
        disk = SlowDisk(monkeypatch)
        await trainer.save(tmp_path / "behind", wait=False)
        trainer.data_state["at"].append(3)
        await disk.reached.wait()
        for batch in BATCHES[2:]:
            await trainer.step(*batch)
        assert trainer.saving and lent.nbytes == lent.most == NARROW.config.states_nbytes
        assert trainer.model.last_checkpoint == str(tmp_path / "at once")
        assert not (tmp_path / "behind").exists()
        disk.go.set()
        await trainer.saved()
        assert not trainer.saving and lent.nbytes == 0
        assert trainer.model.last_checkpoint == str(tmp_path / "behind")
        assert trainer.step_count == 5
        await trainer.saved()
    assert sorted(bytes_of(tmp_path / "behind")) == FILES
    assert bytes_of(tmp_path / "behind") == bytes_of(tmp_path / "at once")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["at once", "behind"]


@pytest.mark.parametrize(("states", "room"), [(2, False), (4, True)])
async def test_a_save_runs_beside_training_if_the_budget_allows_it(
    options: dict[str, Any], tmp_path: Path, states: int, room: bool
) -> None:
    cap = states * NARROW.config.states_nbytes
    async with Engine(**options, host_memory=cap) as engine:
        trainer = await trainer_on(engine, steps=1)
        await trainer.save(tmp_path / "c", wait=False)
        assert trainer.saving is room
        assert engine.statistics().host_used_bytes <= cap
        assert room or sorted(bytes_of(tmp_path / "c")) == FILES
        await trainer.step(*BATCHES[1])
        await trainer.saved()
        await trainer.model.release()
        assert (await Trainer.load(engine, tmp_path / "c")).step_count == 1


async def test_a_save_waits_for_the_previous_one(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        for step, batch in enumerate(BATCHES[:3]):
            await trainer.save(tmp_path / "c", wait=False)
            if step:
                await trainer.save(tmp_path / f"{step}", wait=False)
            await trainer.step(*batch)
        await trainer.saved()
        for name, step in (("c", 2), ("1", 1), ("2", 2)):
            assert (await Trainer.load(engine, tmp_path / name)).step_count == step
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "c"]


async def test_a_clean_exit_finishes_a_save(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await (await trainer_on(engine)).save(tmp_path / "c", wait=False)
    assert sorted(bytes_of(tmp_path / "c")) == FILES


@pytest.mark.parametrize("begun", [True, False])
async def test_an_exit_by_error_breaks_a_save_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async with Engine("cpu") as engine:
            trainer, lent = await trainer_on(engine), Lent(engine, monkeypatch)
            await trainer.save(tmp_path / "c")
            old = bytes_of(tmp_path / "c")
            await trainer.step(*BATCHES[0])
            disk = SlowDisk(monkeypatch)
            await trainer.save(tmp_path / "c", wait=False)
            if begun:
                await disk.reached.wait()
            raise KeyError
    assert bytes_of(tmp_path / "c") == old
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert lent.nbytes == 0
    assert trainer.model.last_checkpoint == str(tmp_path / "c")
    with pytest.raises(CheckpointError, match="was cancelled because its engine closed"):
        await trainer.saved()


async def test_a_cancelled_wait_leaves_the_save_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Engine("cpu") as engine:
        trainer, disk = await trainer_on(engine), SlowDisk(monkeypatch)
        await trainer.save(tmp_path / "c", wait=False)
        waiting = asyncio.create_task(trainer.saved())
        await disk.reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        disk.go.set()
        await trainer.saved()
    assert sorted(bytes_of(tmp_path / "c")) == FILES


async def test_a_cancelled_immediate_save_leaves_the_old_checkpoint(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine)
        await trainer.save(tmp_path / "c")
        old = bytes_of(tmp_path / "c")
        await trainer.step(*BATCHES[0])
        disk = SlowDisk(monkeypatch)
        task = asyncio.create_task(trainer.save(tmp_path / "c"))
        await disk.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        disk.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bytes_of(tmp_path / "c") == old
        assert [path.name for path in tmp_path.iterdir()] == ["c"]
        await trainer.save(tmp_path / "c")
        assert bytes_of(tmp_path / "c") != old


def broken(module: Any, name: str, code: int) -> Callable[[pytest.MonkeyPatch], None]:
    def break_it(monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(module, name, fail)

    return break_it


#: Where a disk fails: reserving, writing, syncing, making the folder, giving files and the folder their names.
FAILURES = {
    "no room": (broken(os, "posix_fallocate", 28), "No space left"),
    "a piece": (broken(os, "pwrite", 5), "Input/output"),
    "a file too large": (broken(os, "pwrite", 27), "File too large"),
    "sync": (broken(os, "fsync", 5), "Input/output"),
    "a new folder": (broken(os, "mkdir", 122), "quota"),
    "a file's name": (broken(os, "replace", 28), "No space left"),
}


@pytest.mark.parametrize(("case", "wait"), covering(FAILURES, [True, False], few=4))
async def test_a_failing_disk_leaves_the_old_checkpoint(
    case: tuple[Callable[[pytest.MonkeyPatch], None], str], wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure, said = case
    async with Engine("cpu") as engine:
        trainer, lent = await trainer_on(engine), Lent(engine, monkeypatch)
        await trainer.save(tmp_path / "c")
        old = bytes_of(tmp_path / "c")
        await trainer.step(*BATCHES[0])
        with monkeypatch.context() as patch:
            failure(patch)
            with pytest.raises(CheckpointError, match=said) as caught:  # noqa: PT012
                await trainer.save(tmp_path / "c", wait=wait)
                await trainer.saved()
        for part in (str(tmp_path / "c"), f"needs {format_size(NARROW.config.states_nbytes)},", "are free"):
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)
        assert bytes_of(tmp_path / "c") == old
        assert [path.name for path in tmp_path.iterdir()] == ["c"]
        assert lent.nbytes == 0 and trainer.model.last_checkpoint == str(tmp_path / "c")
        await trainer.step(*BATCHES[1])
        await trainer.save(tmp_path / "c", wait=wait)
        await trainer.saved()
        assert (await Trainer.load(engine, tmp_path / "c")).step_count == 2


async def test_an_error_that_nobody_awaited_is_raised_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        with monkeypatch.context() as patch:
            FAILURES["a piece"][0](patch)
            await trainer.save(tmp_path / "one", wait=False)
            while trainer.saving:  # noqa: ASYNC110  # on the engine's loop
                await asyncio.sleep(0)
        with pytest.raises(CheckpointError, match="one"):
            await trainer.save(tmp_path / "two")
        await trainer.save(tmp_path / "two")
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_a_process_that_may_write_no_large_file_is_told_so(tmp_path: Path) -> None:
    program = f"""
import asyncio, resource
from asynctile import CheckpointError, Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.layers.model import model_state_of

async def main():
    config = GPT2Config(n_layer=1, n_head=2, n_embd=64, block_size=32, vocab_size=256)
    async with Engine("cpu") as engine:
        trainer = Trainer(await GPT2.create(engine, config))
        await trainer.save({str(tmp_path / "c")!r})
        model_state_of(trainer.model).step_count = 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, -1))
        for wait in (True, False):
            try:
                await trainer.save({str(tmp_path / "c")!r}, wait=wait)
                await trainer.saved()
            except CheckpointError as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        print((await Trainer.load(engine, {str(tmp_path / "c")!r})).step_count)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, step = done.stdout.splitlines()
    assert "File too large" in first and "(ulimit -f)" in first and str(tmp_path / "c") in first
    without_free = [re.sub(r"and [0-9.]+ \w+ are free", "", line) for line in (first, second)]  # others write to the disk too
    assert without_free[0] == without_free[1]
    assert step == "0"
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


async def test_a_full_disk_is_told_with_the_free_bytes_of_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def free(path: str) -> int:
        return 0 if list(tmp_path.glob(".c.*.new")) else 1 << 20

    monkeypatch.setattr(TensorWriter, "write", full)
    monkeypatch.setattr("asynctile.layers.exchange.free_nbytes", free)
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine, steps=0)
        with pytest.raises(CheckpointError, match=r"No space left on device \(the save needs [^,]+, and 0 B are free there\)"):
            await trainer.save(tmp_path / "c")
    assert not list(tmp_path.iterdir())


async def test_the_copy_beside_a_missing_checkpoint_is_read_in_place(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine, steps=1)
        for load in (Trainer.load, GPT2.from_pretrained):
            await trainer.save(tmp_path / "c")
            (tmp_path / "c").rename(tmp_path / ".c.0123abcd.old")
            await load(engine, tmp_path / "c")
            assert [path.name for path in tmp_path.iterdir()] == [".c.0123abcd.old"]
