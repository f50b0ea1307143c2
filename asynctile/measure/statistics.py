"""What an engine holds and has moved, as a frozen snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.run.assembly import Assembly


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of an engine. Sizes in bytes, counters from its start, caps None where there is none.

    On cpu RAM is the device, and device_* and uploaded_bytes are 0. spill_retries: transfers that were repeated and then went
    well. stall_s: seconds in which operations waited for copies and nothing else ran, of the device
    as a whole. What an engine has lent to a share counts there, and no more in the engine's caps; of the spill file it is used.
    """

    device: str
    device_memory_bytes: int | None
    device_used_bytes: int
    device_peak_bytes: int
    host_memory_bytes: int | None
    host_used_bytes: int
    host_peak_bytes: int
    spill_limit_bytes: int | None
    spill_used_bytes: int
    spill_peak_bytes: int
    uploaded_bytes: int
    downloaded_bytes: int
    spill_read_bytes: int
    spill_written_bytes: int
    spill_retries: int
    operations: int
    stall_s: float


def snapshot(assembly: Assembly) -> Statistics:
    """The statistics at this moment; safe from any thread."""
    tiers = assembly.tiers
    device, top, host, spill = tiers.device, tiers.top, tiers.host, tiers.spill
    linked = top is not host
    return Statistics(
        device=device.name,
        device_memory_bytes=top.arena.cap if linked else None,
        device_used_bytes=top.arena.used_nbytes if linked else 0,
        device_peak_bytes=top.ledger.peak_nbytes if linked else 0,
        host_memory_bytes=host.arena.cap,
        host_used_bytes=host.arena.held_nbytes,
        host_peak_bytes=host.ledger.peak_nbytes,
        spill_limit_bytes=None if spill is None else spill.limit,
        spill_used_bytes=0 if spill is None else spill.used_nbytes,
        spill_peak_bytes=0 if spill is None else spill.peak_nbytes,
        uploaded_bytes=top.loaded_nbytes if linked else 0,
        downloaded_bytes=(top.written_nbytes if linked else 0) + assembly.fetched_nbytes,
        spill_read_bytes=0 if spill is None else spill.read_nbytes,
        spill_written_bytes=0 if spill is None else spill.written_nbytes,
        spill_retries=0 if spill is None else spill.retries,
        operations=assembly.operations,
        stall_s=device.stall_s() + (0.0 if tiers.player is None else tiers.player.stall_s),
    )
