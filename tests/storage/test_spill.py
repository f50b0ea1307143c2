"""The spill tier: tiles come back as they were written, or an error names the tile, the place, and the remedy.

Long because one scripted file stands in for the disk in transfers, failures and closing alike.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time

import numpy as np
import pytest

from asynctile.errors import BudgetError, TierError
from asynctile.storage import spill
from asynctile.storage.container import ALIGNMENT, aligned_array
from asynctile.storage.faults import Faults
from asynctile.storage.region import SpillRegion
from asynctile.storage.spill import SpillTier
from tests.settle import HANG_S

NBYTES = 4 * ALIGNMENT


@pytest.fixture
def tier(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    tier = SpillTier(tmp_path, limit=1 << 20)
    tier.open()
    yield tier
    tier.close()
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before


def filled(seed: int, nbytes: int = NBYTES) -> np.ndarray:
    view = aligned_array(nbytes)
    view[:] = np.random.default_rng(seed).integers(0, 256, nbytes)
    return view


class Scripted:
    """A RawFile that answers each transfer with the next of `answers`: an errno, a number of bytes to move, or None for all."""

    def __init__(self, file, answers):
        self.path, self.direct, self.file, self.answers, self.asked = file.path, file.direct, file, answers, []

    def answer(self, views):
        self.asked.append(views[0].nbytes)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, OSError):
            raise answer
        return [views[0][:answer]]

    def preadv(self, views, offset):
        return self.file.preadv(self.answer(views), offset)

    def pwritev(self, views, offset):
        return self.file.pwritev(self.answer(views), offset)

    def __getattr__(self, name):
        return getattr(self.file, name)


def scripted(folder, answers, limit=1 << 20):
    files: list[Scripted] = []

    def wrap(file):
        files.append(Scripted(file, answers))
        return files[0]

    tier = SpillTier(folder, limit, wrap)
    tier.open()
    return tier, files[0]


def test_tiles_come_back_and_are_counted(tier):
    blocks = [tier.take(size, f"t{size}") for size in (1, ALIGNMENT + 1, NBYTES)]
    written = [filled(block.offset, block.nbytes) for block in blocks]
    for block, view in zip(blocks, written, strict=True):
        tier.write(block, view, "t")
    for block, view in zip(blocks, written, strict=True):
        back = aligned_array(block.nbytes)
        tier.read(block, back, "t")
        assert np.array_equal(back, view)
    total = sum(block.nbytes for block in blocks)
    assert tier.written_nbytes == tier.read_nbytes == tier.used_nbytes == tier.peak_nbytes == total == 7 * ALIGNMENT
    assert tier.retries == 0 and tier.limit == 1 << 20


def test_a_view_may_be_shorter_than_its_block(tier):
    block, view, back = tier.take(NBYTES, "t"), filled(1, ALIGNMENT), aligned_array(ALIGNMENT)
    tier.write(block, view, "t")
    tier.read(block, back, "t")
    assert np.array_equal(back, view)


def test_eight_threads_on_blocks_of_their_own_do_not_meet(tier):
    blocks = [tier.take(NBYTES, f"t{index}") for index in range(8)]
    failures: list[BaseException] = []

    def work(index):
        try:
            back = aligned_array(NBYTES)
            for turn in range(20):
                view = filled(100 * index + turn)
                tier.write(blocks[index], view, f"t{index}")
                tier.read(blocks[index], back, f"t{index}")
                assert np.array_equal(back, view)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert tier.written_nbytes == tier.read_nbytes == 8 * 20 * NBYTES


@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY])
def test_a_transient_error_is_survived_and_counted(code, tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "PAUSES_S", (0, 0, 0))
    errors = [OSError(code, os.strerror(code)) for _ in range(6)]
    tier, _ = scripted(tmp_path, errors[:3] + [None] + errors[3:])
    block, view, back = tier.take(NBYTES, "t"), filled(1), aligned_array(NBYTES)
    tier.write(block, view, "t")
    assert tier.retries == 3
    tier.read(block, back, "t")
    assert np.array_equal(back, view)
    assert tier.retries == 6 and tier.read_nbytes == tier.written_nbytes == NBYTES
    tier.close()


def test_a_lasting_error_is_raised_after_three_more_tries_and_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "PAUSES_S", (0, 0, 0))
    tier, file = scripted(tmp_path, [OSError(errno.EIO, os.strerror(errno.EIO)) for _ in range(9)])
    tier.take(NBYTES, "before")
    block = tier.take(NBYTES, "t")
    where = rf"tile h.0: cannot write 16.00 KiB in the spill tier, spill file in {re.escape(str(tmp_path))}, offset {NBYTES}: "
    with pytest.raises(TierError, match=where + "Input/output error; tried 4 times; look at the disk") as caught:
        tier.write(block, filled(1), "h.0")
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.EIO
    assert len(file.asked) == 4 and tier.retries == tier.written_nbytes == 0
    tier.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EBADF, errno.ESTALE, errno.ENODEV])
@pytest.mark.parametrize("verb", ["read", "write"])
def test_any_other_error_is_raised_at_once(verb, code, tmp_path):
    tier, file = scripted(tmp_path, [None] * (verb == "read") + [OSError(code, os.strerror(code))])
    block, view = tier.take(NBYTES, "t"), filled(1)
    if verb == "read":
        tier.write(block, view, "t")
    with pytest.raises(TierError, match=rf"tile h.0: cannot {verb} .* offset 0: {os.strerror(code)}; look at") as caught:
        getattr(tier, verb)(block, view, "h.0")
    assert isinstance(caught.value.__cause__, OSError)
    assert len(file.asked) == 1 + (verb == "read")
    tier.close()


def test_short_transfers_continue_where_they_stopped_and_stay_aligned(tmp_path):
    tier, file = scripted(tmp_path, [ALIGNMENT, 2 * ALIGNMENT, None, ALIGNMENT + 512, None])
    block, view, back = tier.take(NBYTES, "t"), filled(1), aligned_array(NBYTES)
    tier.write(block, view, "t")
    tier.read(block, back, "t")
    assert np.array_equal(back, view)
    assert file.asked[:3] == [NBYTES, NBYTES - ALIGNMENT, ALIGNMENT]
    assert file.asked[3:] == [NBYTES, NBYTES - ALIGNMENT - (0 if tier.direct else 512)]
    assert tier.retries == 0
    tier.close()


def test_a_file_truncated_under_the_tier_is_distinguished_from_a_bad_disk(tmp_path):
    tier, file = scripted(tmp_path, [])
    block = tier.take(NBYTES, "t")
    tier.write(block, filled(1), "t")
    file.truncate(ALIGNMENT)
    with pytest.raises(TierError, match=r"offset 0: the file ends after 4096 bytes of the tile; something truncated it; look"):
        tier.read(block, aligned_array(NBYTES), "t")
    tier.close()


def test_a_block_that_was_never_written_whole_cannot_be_read(tmp_path):
    tier, _ = scripted(tmp_path, [None, OSError(errno.EROFS, "read only")])
    block, view = tier.take(NBYTES, "t"), filled(1)
    with pytest.raises(TierError, match=r"tile t: .*no complete write is stored there"):
        tier.read(block, view, "t")
    tier.write(block, view, "t")
    with pytest.raises(TierError, match="read only"):
        tier.write(block, view, "t")
    with pytest.raises(TierError, match="no complete write is stored there"):
        tier.read(block, view, "t")
    tier.write(block, view, "t")
    tier.give(block)
    other = tier.take(NBYTES, "u")
    assert other.offset == block.offset
    with pytest.raises(TierError, match=r"tile u: .*no complete write is stored there"):
        tier.read(other, view, "u")
    tier.read(block, view, "t")  # began before the block was given out, and comes after nothing
    tier.close()


def test_bytes_changed_on_the_disk_are_never_handed_over_silently(tmp_path):
    tier, file = scripted(tmp_path, [])
    block, view = tier.take(NBYTES, "t"), filled(1)
    for place in (0, 1, NBYTES // 2, NBYTES - 1):
        tier.write(block, view, "t")
        damaged = filled(1)
        damaged[place] ^= 1
        file.file.pwritev([damaged], block.offset)
        with pytest.raises(TierError, match=r"tile t: .*offset 0: its checksum is [0-9a-f]{16}, but [0-9a-f]{16} was written"):
            tier.read(block, aligned_array(NBYTES), "t")
    tier.write(block, view, "t")
    tier.read(block, view, "t")
    assert tier.retries == 0 and tier.read_nbytes == NBYTES
    tier.close()


@pytest.mark.parametrize("limit", [None, 64 * ALIGNMENT])
def test_disk_space_is_there_before_the_first_write(limit, tmp_path):
    tier, file = scripted(tmp_path, [], limit)
    assert file.file.nbytes == (limit or 0)
    tier.reserve({NBYTES: 3, ALIGNMENT: 1})
    assert file.file.nbytes == (limit or 3 * NBYTES + ALIGNMENT)
    for _ in range(4):
        tier.take(NBYTES, "t")
    assert file.file.nbytes == (limit or 4 * NBYTES + ALIGNMENT)
    tier.close()


def test_a_limit_too_small_and_a_limit_beyond_the_disk_are_different_errors(tmp_path):
    tier = SpillTier(tmp_path, limit=NBYTES)
    tier.open()
    with pytest.raises(BudgetError, match="raise spill_limit") as caught:
        tier.reserve({NBYTES: 2})
    assert caught.value.floor == 2 * NBYTES
    tier.close()
    tier = SpillTier(tmp_path, limit=1 << 50)
    with pytest.raises(TierError, match="are free"):
        tier.open()
    tier.close()
    tier = SpillTier(tmp_path)
    tier.open()
    with pytest.raises(TierError, match="are free"):
        tier.take(1 << 50, "t")
    assert tier.used_nbytes == 0
    tier.close()


def test_a_closed_tier_refuses_every_transfer_and_may_be_closed_again(tmp_path):
    tier = SpillTier(tmp_path, limit=1 << 20)
    with pytest.raises(TierError, match="not open yet"):
        tier.write(tier.take(1, "t"), filled(1, ALIGNMENT), "t")
    tier.open()
    with pytest.raises(TierError, match="already opened"):
        tier.open()
    block, view = tier.take(NBYTES, "t"), filled(1)
    tier.write(block, view, "t")
    tier.close()
    tier.close()
    for call in (tier.read, tier.write):
        with pytest.raises(TierError, match=rf"tile t needs the spill tier in {re.escape(str(tmp_path))}, which is closed"):
            call(block, view, "t")
    tier.give(block)


class Held(Scripted):
    """A file whose write waits for `go_on`. seen: the calls on it, in order."""

    def __init__(self, file):
        super().__init__(file, [])
        self.started, self.go_on, self.seen = threading.Event(), threading.Event(), []

    def pwritev(self, views, offset):
        self.started.set()
        assert self.go_on.wait(HANG_S), "nobody waits for it"
        self.seen.append("written")
        return self.file.pwritev(views, offset)

    def close(self):
        self.seen.append("closed")
        self.file.close()


@pytest.fixture
def writing(tmp_path):
    """A tier, its file, and the thread that is in the middle of a write."""
    files: list[Held] = []
    tier = SpillTier(tmp_path, 1 << 20, lambda file: files.append(Held(file)) or files[-1])
    tier.open()
    writer = threading.Thread(target=tier.write, args=(tier.take(NBYTES, "t"), filled(1), "t"))
    writer.start()
    assert files[0].started.wait(HANG_S)
    return tier, files[0], writer


def is_closed(tier, block):
    """Return whether the tier refuses transfers because it is closed; `block` was never written."""
    with pytest.raises(TierError) as caught:
        tier.read(block, filled(1), "another")
    return "which is closed" in str(caught.value)


def test_closing_waits_for_the_running_transfer(writing):
    tier, file, writer = writing
    block = tier.take(NBYTES, "another")
    closing = threading.Thread(target=tier.close)
    closing.start()
    while not is_closed(tier, block):
        time.sleep(0.001)
    assert file.seen == []
    file.go_on.set()
    for thread in (writer, closing):
        thread.join()
    assert file.seen == ["written", "closed"]
    assert tier.written_nbytes == NBYTES


def test_a_file_left_to_a_hanging_transfer_is_closed_at_its_end(writing):
    tier, file, writer = writing
    tier.close(patience_s=0)
    assert file.seen == []
    file.go_on.set()
    writer.join()
    assert file.seen == ["written", "closed"]


def test_a_tier_that_is_closed_while_it_opens_keeps_no_file(tmp_path):
    files: list[Held] = []

    def closing(file):
        files.append(Held(file))
        tier.close()
        return files[0]

    tier = SpillTier(tmp_path, 1 << 20, closing)
    tier.open()
    assert files[0].seen == ["closed"]
    with pytest.raises(TierError, match="which is closed"):
        tier.write(tier.take(NBYTES, "t"), filled(1), "t")


@pytest.mark.parametrize("part", [lambda whole: whole, lambda whole: SpillRegion(whole, 1 << 19)], ids=["whole", "region"])
def test_closing_ends_the_pause_between_two_tries(part, tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "PAUSES_S", (60,))
    faults = Faults()
    whole = SpillTier(tmp_path, 1 << 20, faults.wrap)
    whole.open()
    tier = part(whole)
    faults.arm("eio_write")
    raised: list[TierError] = []

    def write():
        try:
            tier.write(tier.take(NBYTES, "t"), filled(1), "t")
        except TierError as error:
            raised.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    while not faults.injected["eio_write"]:
        time.sleep(0.001)
    whole.close(patience_s=10)
    writer.join(HANG_S)
    assert "which is closed" in str(raised[0])


def test_freed_regions_leave_their_part_of_the_file_to_regions_of_any_size(tmp_path):
    tier, file = scripted(tmp_path, [], None)
    for pages in range(1, 8):
        region = SpillRegion(tier, pages * ALIGNMENT)
        block, view, back = region.take(pages * ALIGNMENT, "t"), filled(pages, ALIGNMENT), aligned_array(ALIGNMENT)
        region.write(block, view, "t")
        region.read(block, back, "t")
        assert np.array_equal(back, view)
        region.give_back()
        assert (tier.used_nbytes, file.file.nbytes) == (0, pages * ALIGNMENT)
    tier.close()


def test_regions_fit_below_a_limit_whatever_sizes_came_before(tmp_path):
    tier = SpillTier(tmp_path, limit=8 * ALIGNMENT)
    tier.open()
    for pages in (1, 2, 3, 4, 8):
        SpillRegion(tier, pages * ALIGNMENT).give_back()
    kept = SpillRegion(tier, 5 * ALIGNMENT)
    with pytest.raises(BudgetError, match=r"a share of the engine needs 16.00 KiB of the spill file; 12.00 KiB of 32.00 KiB"):
        SpillRegion(tier, 4 * ALIGNMENT)
    kept.give_back()
    SpillRegion(tier, 8 * ALIGNMENT).give_back()
    tier.close()


@pytest.mark.parametrize(
    "view",
    [
        aligned_array(2 * NBYTES),
        aligned_array(NBYTES)[: ALIGNMENT + 1],
        aligned_array(NBYTES)[512 : 512 + ALIGNMENT],
        aligned_array(NBYTES)[:0],
        aligned_array(NBYTES).view(np.float32),
        aligned_array(NBYTES).reshape(2, -1),
        aligned_array(2 * ALIGNMENT)[::2],
    ],
)
def test_a_view_that_the_disk_would_refuse_is_a_wrong_argument(view, tier):
    block = tier.take(NBYTES, "t")
    for call in (tier.read, tier.write):
        with pytest.raises(ValueError, match=r"tile t was given .* expected"):
            call(block, view, "t")


def test_a_failing_wrap_leaves_the_folder_free(tmp_path):
    def wrap(_file):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        SpillTier(tmp_path, None, wrap).open()
    tier = SpillTier(tmp_path)
    tier.open()
    tier.close()
