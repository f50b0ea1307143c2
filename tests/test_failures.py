"""The state that faults of the disk, stalls, refused memory and cancellation leave behind: never a wrong byte."""

import asyncio
import errno
import threading
from functools import partial

import numpy as np
import pytest

from asynctile import BudgetError, Engine, StalledError, TierError
from asynctile.ops import gemm
from asynctile.share import runtime_of
from asynctile.storage.faults import SURVIVED, Faults
from asynctile.streams.run_ahead import LOOKS, Looks
from tests.inside_engine import watch
from tests.matmul import Matmul, engine_for
from tests.settle import HANG_S, settle, turns, until


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    """Repeat transfers that failed at once."""
    monkeypatch.setattr("asynctile.storage.spill.PAUSES_S", (0, 0, 0))


@pytest.mark.parametrize("kind", sorted(SURVIVED))
async def test_faults_that_pass_change_no_bit(kind, tmp_path):
    faults, work = Faults(seed=3), Matmul()
    async with engine_for(work, tmp_path, "cpu", None, 6, wrap_spill=faults.wrap) as engine:
        await work.prepare(engine)
        faults.arm(kind, after=7)
        await work.run(engine)
        found = await work.result(engine)
    assert faults.injected[kind] == 1
    assert np.allclose(found, work.a @ work.b, atol=1e-3)


@pytest.mark.parametrize("kind", ["flip_written", "lost_write", "torn_write", "enospc"])
@pytest.mark.parametrize("place", [("cpu", None, 6), ("emulated", 6, 2)], ids=str)
async def test_bytes_lost_by_the_disk_raise_an_error_that_names_them(kind, place, tmp_path):
    faults, work = Faults(seed=3), Matmul()
    async with engine_for(work, tmp_path, *place, wrap_spill=faults.wrap) as engine:
        await work.prepare(engine)
        faults.arm(kind, after=3)  # one of a result: the tiles before it are written anew
        with pytest.raises(TierError, match=r"tile [abc]\[\d,\d\]: .*spill.* offset \d+"):
            await several_runs(work, engine)


async def several_runs(work, engine):
    for _ in range(5):
        await work.run(engine)
        await work.result(engine)


async def test_a_program_goes_on_after_a_tier_has_failed_once(tmp_path):
    faults, work = Faults(seed=3), Matmul()
    async with engine_for(work, tmp_path, "cpu", None, 6, wrap_spill=faults.wrap) as engine:
        await work.prepare(engine)

        async def job():
            async with runtime_of(engine).exclusive():
                run = await runtime_of(engine).start(work.program, work.demand, {})
                faults.arm("eio_read", after=4, lasting=True)
                try:
                    await run.finish()
                except TierError:
                    faults.disarm()
                    return {tile.name[0] for tile in await run.abandon()}

        assert await runtime_of(engine).call(job()) <= {"c"}
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)


@pytest.mark.parametrize("place", [("cpu", None, 6), ("emulated", 6, 2)], ids=str)
async def test_memory_that_the_system_refuses_is_an_error_and_the_engine_goes_on(place, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    work = Matmul()
    async with engine_for(work, tmp_path, *place) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("asynctile.storage.host.mmap.mmap", refuse)
            with pytest.raises(TierError, match=r"address space, .*Cannot allocate memory.* lower host_memory"):
                await work.prepare(engine)
        await work.prepare(engine)
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)


class Deaf:
    """A disk that stops answering.

    Once `hangs` is set, every read, or every call of the kind that `transfer` names, sets `asked` and waits for `answer`.
    """

    def __init__(self, transfer="preadv"):
        self.hangs, self.asked, self.answer = threading.Event(), threading.Event(), threading.Event()
        self.transfer = transfer

    def wrap(self, file):
        transfer = getattr(file, self.transfer)

        def hang(views, offset):
            if self.hangs.is_set():
                self.asked.set()
                self.answer.wait()
            return transfer(views, offset)

        setattr(file, self.transfer, hang)
        return file


@pytest.mark.parametrize("place", [("cpu", None, 6), ("emulated", 6, 2)], ids=str)
async def test_a_disk_that_stops_answering_is_named_with_the_waiting_work_and_the_engine_closes(place, tmp_path):
    deaf, work = Deaf(), Matmul()
    async with engine_for(work, tmp_path, *place, watchdog=None, wrap_spill=deaf.wrap) as engine:
        engine.plays = False  # so that operations are enqueued before their operands: tiles of a plan get to its start first
        await work.prepare(engine)
        await work.run(engine)
        deaf.hangs.set()
        watch(engine, 0.3)
        async with asyncio.timeout(HANG_S):
            with pytest.raises(StalledError) as caught:
                await work.run(engine)
            with pytest.raises(StalledError):
                await work.result(engine)
    deaf.answer.set()
    says = str(caught.value)
    assert "nothing has moved for 0.3 s" in says
    assert "the copy of tile" in says and "has run on spill" in says
    assert "gemm(" in says and "waits for" in says


async def test_a_kernel_that_hangs_is_named(tmp_path):
    work, begun, gate = Matmul(n=1), threading.Event(), threading.Event()

    def hang(*args):
        begun.set()
        gate.wait(HANG_S)

    async with Engine("cpu", watchdog=None) as engine:
        await work.prepare(engine)
        runtime_of(engine).device.kernels["gemm"] = hang
        try:
            await runtime_of(engine).launch(work.operation(0, 0, 0))
            await until(begun.is_set)
            watch(engine, 0.2)
            async with asyncio.timeout(HANG_S):
                with pytest.raises(StalledError, match=r"gemm\(a\[0,0\], b\[0,0\], c\[0,0\]\) has run on compute"):
                    await runtime_of(engine).synchronize()
        finally:
            gate.set()


class Slow:
    """A disk that ends each transfer just before the watchdog's patience ends, however long the looks take.

    most: how often a single wait has seen that.
    """

    def __init__(self):
        self.most, self.ends = 0, threading.Event()

    def wrap(self, file):
        for name in ("preadv", "pwritev"):
            setattr(file, name, partial(self._transfer, getattr(file, name)))
        return file

    def _transfer(self, transfer, views, offset):
        assert self.ends.wait(HANG_S)
        self.ends.clear()
        return transfer(views, offset)

    def looks(self):
        """Return the class of the watchdog's looks: the last one comes after the transfer has ended."""
        disk = self

        class Last(Looks):
            def __init__(self, patience_s, moved):
                super().__init__(patience_s, moved)
                self.moved, self.seen, self.same, self.times = moved, moved(), 0, 0

            def has_stood_still(self, **given):
                seen, self.seen = self.seen, self.moved()
                if seen != self.seen:
                    self.times += self.same == LOOKS - 1
                    disk.most = max(disk.most, self.times)
                    self.same = 0
                elif self.same < LOOKS - 1:
                    self.same += 1
                else:
                    disk.ends.set()
                    return False
                return super().has_stood_still(**given)

        return Last


async def test_work_that_is_slow_but_moves_is_left_alone(tmp_path, monkeypatch):
    work, slow = Matmul(n=2), Slow()
    monkeypatch.setattr("asynctile.streams.run_ahead.Looks", slow.looks())
    async with engine_for(work, tmp_path, "cpu", None, 4, watchdog=0.02, wrap_spill=slow.wrap) as engine:
        await work.prepare(engine)
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)
    assert slow.most > 1, "each wait met one transfer alone"


async def test_an_input_that_nobody_writes_is_named(tmp_path):
    from asynctile.ops import copy
    from asynctile.storage.tile import Tile

    async with Engine("cpu", watchdog=0.2) as engine:
        await runtime_of(engine).reserve(Matmul(n=1).demand)
        async with asyncio.timeout(HANG_S):
            with pytest.raises(StalledError, match=r"copy\(never, target\) waits for tile never, which nobody has written"):
                await runtime_of(engine).launch(copy(Tile("never", (32, 32)), Tile("target", (32, 32))))


async def test_host_bytes_wait_for_older_bytes_that_are_still_being_loaded_into_their_slot(tmp_path):
    work, deaf = Matmul(), Deaf()
    async with engine_for(work, tmp_path, "cpu", None, 6, wrap_spill=deaf.wrap) as engine:
        await work.prepare(engine)
        await work.run(engine)
        tile = work.tiles["a"][0, 0]

        async def job():
            async with runtime_of(engine).exclusive():
                await runtime_of(engine).tiers.caps.unpack()
                deaf.hangs.set()
                runtime_of(engine).tiers.top.admit((runtime_of(engine).tiers.top.of(tile),), "r")
                filling = asyncio.create_task(runtime_of(engine).assembly.put(tile, np.full(tile.shape, 7, np.float32)))
                await turns()
                deaf.answer.set()
                await filling
                await runtime_of(engine).tiers.run_ahead.drain()

        await runtime_of(engine).call(job())
        assert (await runtime_of(engine).read(tile) == 7).all()


@pytest.mark.parametrize("place", [("cpu", None, 6), ("emulated", 6, 3)], ids=str)
async def test_a_failed_read_is_tried_afresh_the_next_time(place, tmp_path):
    faults, work = Faults(seed=3), Matmul()
    async with engine_for(work, tmp_path, *place, wrap_spill=faults.wrap) as engine:
        await work.prepare(engine)
        await work.run(engine)
        faults.arm("eio_read", lasting=True)
        failed = []
        for tile in work.standing():
            try:
                await runtime_of(engine).read(tile)
            except TierError:
                failed.append(tile)
        assert failed
        faults.disarm()
        assert np.array_equal(await runtime_of(engine).read(failed[0]), work.part(work.a, 0, 0))
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)


async def test_a_cut_that_fails_in_the_middle_loses_nothing(tmp_path, monkeypatch):
    first, other = Matmul(), Matmul(n=6)
    async with engine_for(first, tmp_path, "emulated", 60, 60) as engine:
        await first.prepare(engine)
        await first.run(engine)
        link, calls = runtime_of(engine).tiers.link, []
        write = link.write

        def fails(tile, slot, waits):
            calls.append(tile)
            if len(calls) == 3:
                raise BudgetError("full", floor=0)
            return write(tile, slot, waits)

        with monkeypatch.context() as patch:
            patch.setattr(link, "write", fails)
            with pytest.raises(BudgetError, match="full"):
                await other.prepare(engine)
        assert np.allclose(await first.result(engine), first.a @ first.b, atol=1e-3)
        await other.prepare(engine)
        await other.run(engine)
        await first.run(engine)
        for work in (first, other):
            assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)


async def test_a_store_that_is_cancelled_or_wrong_leaves_old_bytes_or_none(tmp_path):
    work, deaf = Matmul(), Deaf("pwritev")
    async with engine_for(work, tmp_path, "cpu", None, 4, wrap_spill=deaf.wrap) as engine:
        await work.prepare(engine)
        tiles = list(work.tiles["a"].items())
        with pytest.raises(TypeError, match=r"a\[0,0\] takes an array of float32, not complex128"):
            await runtime_of(engine).store([(tiles[0][1], np.zeros((32, 32), np.complex128))])
        deaf.hangs.set()
        sevens = [(tile, np.full((32, 32), 7, np.float32)) for _, tile in tiles]
        storing = asyncio.create_task(runtime_of(engine).store(sevens))
        await until(deaf.asked.is_set)
        storing.cancel()
        await settle(engine)
        deaf.answer.set()
        with pytest.raises(asyncio.CancelledError):
            await storing
        for key, tile in tiles:
            found = await runtime_of(engine).read(tile)
            assert (found == 7).all() or np.array_equal(found, work.part(work.a, *key)), tile.name


async def test_an_engine_closes_although_nobody_waits_for_its_hanging_work(tmp_path):
    deaf, work = Deaf(), Matmul()
    async with asyncio.timeout(HANG_S):
        async with engine_for(work, tmp_path, "cpu", None, 4, watchdog=None, wrap_spill=deaf.wrap) as engine:
            await work.prepare(engine)
            deaf.hangs.set()
            watch(engine, 0.3)
            absent = next(tile for tile in work.tiles["a"].values() if runtime_of(engine).tiers.top.of(tile).slot is None)
            await runtime_of(engine).launch(gemm(absent, work.tiles["b"][0, 0], work.tiles["c"][0, 0]))
    deaf.answer.set()


async def test_a_cancelled_opening_leaves_the_folder_free(tmp_path):
    for ticks in range(6):
        opening = asyncio.create_task(Engine("cpu", spill=tmp_path).__aenter__())
        for _ in range(ticks):
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with Engine("cpu", spill=tmp_path):
            pass


async def test_a_program_that_the_disk_has_no_room_for_leaves_the_smaller_one_running(tmp_path):
    small, large = Matmul(), Matmul(n=6)

    def wrap(file):
        allocate = file.allocate

        def refuse(nbytes):
            if nbytes > 60 * small.nbytes:
                raise TierError("no room on the disk")
            allocate(nbytes)

        file.allocate = refuse
        return file

    async with engine_for(small, tmp_path, "cpu", None, 6, wrap_spill=wrap) as engine:
        await small.prepare(engine)
        await small.run(engine)
        with pytest.raises(TierError, match="no room"):
            await large.prepare(engine)
        await small.run(engine)
        assert np.allclose(await small.result(engine), small.a @ small.b, atol=1e-3)
