"""Deliberate faults: each does what its name says, and the spill tier reacts as the table says."""

from __future__ import annotations

import numpy as np
import pytest

from asynctile.errors import TierError
from asynctile.storage import spill
from asynctile.storage.container import ALIGNMENT, ContainerFile, aligned_array
from asynctile.storage.faults import FAULTS, SURVIVED, SURVIVED_LASTING, Faults
from asynctile.storage.spill import SpillTier

NBYTES = 8 * ALIGNMENT


@pytest.fixture(params=["direct", "buffered"])
def folder(request, tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "PAUSES_S", (0, 0, 0))
    if request.param == "buffered":
        monkeypatch.setattr("os.O_DIRECT", 0)
    return tmp_path


def filled(seed: int) -> np.ndarray:
    view = aligned_array(NBYTES)
    view[:] = np.random.default_rng(seed).integers(0, 256, NBYTES)
    return view


def opened(folder, faults: Faults) -> SpillTier:
    tier = SpillTier(folder, 1 << 20, faults.wrap)
    tier.open()
    return tier


def test_the_table_and_its_summaries_agree():
    assert sorted(SURVIVED) == ["eio_read", "eio_write", "flip_read", "short_read", "short_write", "slow"]
    assert sorted(SURVIVED_LASTING) == ["short_read", "short_write", "slow"]


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("kind", FAULTS)
def test_the_tier_survives_or_reports_each_fault_as_the_table_says(kind, lasting, folder):
    faults = Faults(seed=3)
    tier = opened(folder, faults)
    tier.take(ALIGNMENT, "before")
    blocks = [tier.take(NBYTES, f"t{index}") for index in range(3)]
    for index, block in enumerate(blocks):  # lost or torn bytes leave other bytes than these
        tier.write(block, filled(90 + index), f"t{index}")
    written, errors = tier.written_nbytes, []
    views = [filled(index) for index in range(3)]
    faults.arm(kind, after=1, lasting=lasting)
    for verb in ("write", "read"):
        for index, block in enumerate(blocks):
            try:
                if verb == "write":
                    tier.write(block, views[index], f"t{index}")
                    written += NBYTES
                else:
                    back = aligned_array(NBYTES)
                    tier.read(block, back, f"t{index}")
                    assert np.array_equal(back, filled(index)), "wrong bytes were handed over silently"
            except TierError as error:
                errors.append((verb, index, str(error)))
    for _, index, sentence in errors:
        for part in (f"tile t{index}: ", str(folder), f"offset {blocks[index].offset}: ", "load the last checkpoint"):
            assert part in sentence
    raised_by = {verb for verb, _, sentence in errors if "no complete write is stored there" not in sentence}
    survived = FAULTS[kind].lasting if lasting else FAULTS[kind].once
    assert raised_by == (set() if survived else {"write" if kind in ("eio_write", "enospc") else "read"})
    assert all(np.array_equal(view, filled(index)) for index, view in enumerate(views)), "the caller's bytes were altered"
    assert faults.injected[kind] >= 1 and set(faults.injected) == {kind}
    assert tier.written_nbytes == written
    if survived:
        assert tier.read_nbytes == 3 * NBYTES
        assert tier.retries == (1 if kind in ("eio_read", "eio_write", "flip_read") else 0)
    faults.disarm()
    for index, block in enumerate(blocks):  # a healthy disk again
        tier.write(block, views[index], "t")
        tier.read(block, aligned_array(NBYTES), "t")
    tier.close()
    assert not list(folder.iterdir())


def test_a_fault_waits_for_the_transfer_it_was_planned_for(tmp_path):
    faults, view = Faults(), aligned_array(ALIGNMENT)
    file = faults.wrap(ContainerFile(tmp_path))
    faults.arm("eio_read", after=2)
    faults.arm("eio_write")
    with pytest.raises(OSError, match="Input/output"):
        file.pwritev([view], 0)
    assert file.pwritev([view], 0) == ALIGNMENT
    assert [file.preadv([view], 0) for _ in range(2)] == [ALIGNMENT] * 2
    with pytest.raises(OSError, match="Input/output"):
        file.preadv([view], 0)
    assert faults.injected == {"eio_read": 1, "eio_write": 1}
    file.close()


def test_two_faults_due_at_once_hit_two_transfers_and_slow_combines_with_any(tmp_path):
    faults, view = Faults(delay_s=0), aligned_array(ALIGNMENT)
    file = faults.wrap(ContainerFile(tmp_path))
    for kind in ("eio_write", "enospc", "slow"):
        faults.arm(kind)
    with pytest.raises(OSError, match="Input/output"):
        file.pwritev([view], 0)
    with pytest.raises(OSError, match="No space"):
        file.pwritev([view], 0)
    file.close()


def test_the_seed_decides_which_bit_flips(tmp_path):
    def flipped(seed):
        faults, view = Faults(seed), filled(1)
        file = faults.wrap(ContainerFile(tmp_path))
        faults.arm("flip_written")
        file.pwritev([view], 0)
        back = aligned_array(NBYTES)
        file.preadv([back], 0)
        file.close()
        assert np.unpackbits(back ^ filled(1)).sum() == 1
        return int(np.flatnonzero(back ^ view)[0])

    assert flipped(1) == flipped(1) != flipped(2)


def test_short_transfers_stop_at_the_alignment_of_a_direct_file(folder):
    faults, view = Faults(), filled(1)
    file = faults.wrap(ContainerFile(folder))
    faults.arm("short_write", lasting=True)
    moved = file.pwritev([view[:ALIGNMENT], view[ALIGNMENT : 7 * ALIGNMENT]], 0)
    assert moved == (3 * ALIGNMENT if file.direct else 7 * ALIGNMENT // 2)
    assert file.pwritev([view[:ALIGNMENT]], 0) == (ALIGNMENT if file.direct else ALIGNMENT // 2)
    file.close()


class Clock:
    """A stand-in for the module `time`, which advances only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_throttled_disk_is_one_link_for_reads_and_writes(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("asynctile.storage.faults.time", clock)
    faults, view = Faults(rate=NBYTES * 100), filled(1)
    file = faults.wrap(ContainerFile(tmp_path))
    for count in range(1, 4):
        file.pwritev([view], 0)
        file.preadv([view], 0)
        assert clock.now == pytest.approx(0.02 * count)
    clock.now += 1.0  # work that the disk did not do while idle, it cannot do later
    file.preadv([view], 0)
    assert clock.now == pytest.approx(1.07)
    file.close()
