"""What an engine lends of itself: a share with caps of its own, which ends while the engine goes on."""

from __future__ import annotations

from asynctile.errors import DeviceError
from asynctile.lifetime import Lifetime
from asynctile.loop.thread import LoopThread
from asynctile.memory.tiers import TierOptions
from asynctile.share import Share
from asynctile.storage.spill import SpillRegion


class LentShare(Share):
    """What `Engine.share` lends. region: of the spill file, None for none. options: its caps."""

    def __init__(
        self, life: Lifetime, what: str, precision: str, prefetch: int, region: SpillRegion | None, options: TierOptions
    ) -> None:
        super().__init__(life, what, precision, prefetch)
        self.options = options
        self._region = region
        self._has_ended = False

    async def end(self) -> None:
        """On the device's loop: wait for what runs, and for saves, then free every tile. It is of no use afterwards.

        StalledError if something hangs: whatever that may still write to then keeps its place, and the engine goes without.
        """
        self._has_ended = True
        async with self.exclusive():
            run_ahead = self.tiers.run_ahead
            await self.tiers.caps.returned()
            await run_ahead.settle()
            if run_ahead.stalled is not None:
                raise run_ahead.stalled
            for tier in self.tiers.from_the_top():
                for residency in list(tier.ledger.resident):
                    tier.release(residency)
            self.tiers.close()
            self._life.tiers.remove(self.tiers)
            if self._region is not None:
                self._region.give_back()

    def _open_loop(self) -> LoopThread:
        loop = super()._open_loop()
        if self._has_ended and not loop.is_here():
            raise DeviceError("the share of the engine has ended: use it inside 'async with engine.share(...)'")
        return loop
