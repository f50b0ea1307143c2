"""The alarm of a run on one of several nodes: it ends the exchange of tiles as soon as an entry has failed.

After a failure here, other nodes wait for tiles that this node will not send, and this node for theirs. So the stretch of the
failed entry may never end, and its end cannot be what shows the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from asynctile.execute.workers.places import FAILED
from asynctile.nodes.tcp_exchange import TcpExchange

#: Seconds between two looks.
EVERY_S = 0.5


class Alarm:
    """Looks at the entries of a run until `end`, on the device's loop.

    statuses: returns the status of each entry. cause: returns the error of a failed one. error: of the entry that ended the
    exchange; None if none did.
    """

    def __init__(
        self, exchange: TcpExchange, statuses: Callable[[], np.ndarray], cause: Callable[[int], BaseException]
    ) -> None:
        self.error: BaseException | None = None
        self._exchange = exchange
        self._statuses = statuses
        self._cause = cause
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._exchange.failure is not None:
            return  # failed transfers are no news then
        failed = np.flatnonzero(self._statuses() == FAILED)
        if failed.size:
            self.error = self._cause(int(failed[0]))
            self._exchange.abort(str(self.error))
        else:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)
