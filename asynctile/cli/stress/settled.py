"""The settled state of an engine: it must hold when every call has ended, however it ended, as if nobody had called.

Covers an open engine between calls; leaks.py covers a closed one. Tasks on the engine's loop have ended, locks are free, no
RAM is lent, every cap is whole, nothing is held back, and each tier holds the standing tiles and no other byte. Folders are
complete and have nothing beside them.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterable
from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.place import StressEngine
from asynctile.cli.stress.round import WATCHDOG_S
from asynctile.loop.exclusive import Exclusive
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from asynctile.streams.gate import OPEN

__all__ = ["LOOK_S", "Settled"]

#: Seconds between two checks of something that ends by itself.
LOOK_S = 0.005


class Settled:
    """The state of `engine` when it is opened.

    locks: those of its models, beside its own. folder: where only `names` may exist.
    """

    def __init__(self, engine: StressEngine, locks: Iterable[Exclusive], folder: Path, names: set[str]) -> None:
        self._engine = engine
        self._locks = (runtime_of(engine).busy, *locks)
        self._folder, self._names = folder, names
        self._caps = _caps_of(engine)

    async def wind_down(self, what: str) -> None:
        """Wait for work that winds down after its caller is gone; Finding for a task, or a thread for batches, that stays."""

        async def tasks() -> list[str]:
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                _, pending = await asyncio.wait(others, timeout=WATCHDOG_S)
                if pending:
                    return [task.get_name() for task in pending]
            return []

        for _ in range(2):  # collecting what a task held may start tasks that give back its tiles
            if left := await runtime_of(self._engine).call(tasks()):
                raise Finding("leaked", f"{what} left endless tasks on the engine's loop: {', '.join(left)}")
            gc.collect()
        for _ in range(int(WATCHDOG_S / LOOK_S)):
            if not any(thread.name == "asynctile-batches" for thread in threading.enumerate()):
                return
            gc.collect()
            await asyncio.sleep(LOOK_S)
        raise Finding("leaked", f"{what} left a thread that waits to be asked for batches")

    async def expect(self, what: str, standing: Iterable[Tile]) -> None:
        """Raise Finding if the call `what` left anything on the engine or in the folder, except the tiles of `standing`."""
        left = await runtime_of(self._engine).call(self._left(set(standing)))
        left += [f"{path.name} in {self._folder}" for path in self._folder.iterdir() if path.name not in self._names]
        if left:
            raise Finding("leaked", f"{what} left {', '.join(left)}")

    async def _left(self, standing: set[Tile]) -> list[str]:
        """Return a description of everything on the engine that should not be there, in one turn of the engine's loop."""
        engine, tiers = self._engine, runtime_of(self._engine).tiers
        left = [f"{lock.what} held by {lock.holder}" for lock in self._locks if lock.holder]
        left += [f"{lock.what} awaited by {lock.waiting}" for lock in self._locks if lock.waiting]
        left += [f"a loan of {loan.nbytes} bytes to {loan.who}" for loan in tiers.caps.loans]
        left += [f"a share named {share.name}" for share in engine.shares[1:]]
        if (caps := _caps_of(engine)) != self._caps:
            left.append(f"caps of {caps} bytes instead of {self._caps}")
        if tiers.gate.level != OPEN or tiers.gate.is_awaited:
            left.append(f"a gate at {tiers.gate.level}")
        if tiers.run_ahead.computing:
            left.append(f"{tiers.run_ahead.computing} threads marked as computing")
        for tier in tiers.from_the_top():
            arena, there = tier.arena, {residency.tile for residency in tier.ledger.resident}
            left += [f"{tile.name} in {arena.argument}" for tile in sorted(there - standing, key=lambda tile: tile.name)]
            slots = sum(residency.slot.nbytes for residency in tier.ledger.resident if residency.slot is not None)
            if arena.used_nbytes != slots or arena.counted_nbytes != slots:
                left.append(f"{arena.used_nbytes} bytes of {arena.argument} in use, but tiles take {slots}")
            if arena.lent_nbytes:
                left.append(f"{arena.lent_nbytes} bytes of {arena.argument} lent to nobody")
        return left + self._left_on_disk(standing)

    def _left_on_disk(self, standing: set[Tile]) -> list[str]:
        tiers = runtime_of(self._engine).tiers
        if tiers.spill is None:
            return []
        blocks = [tiers.host.of(tile).backing for tile in standing]
        wanted = sum(block.nbytes for block in blocks if block is not None)
        # Bound schedules have places for their own temporaries.
        if tiers.spill.used_nbytes < wanted or (tiers.spill.used_nbytes > wanted and not self._engine.has_schedules):
            return [f"{tiers.spill.used_nbytes} bytes of the spill file in use, but tiles take {wanted}"]
        return []


def _caps_of(engine: StressEngine) -> list[int | None]:
    """Return the cap of each tier in bytes, None for no cap. Bytes of shares are taken off, loans of RAM are not."""
    return [tier.arena.cap for tier in runtime_of(engine).tiers.from_the_top()]
