"""The rows of the next run of a decode program, on every device: `Selection`. Pure, but for the counts of its requests.

Each device computes the requests whose pages it holds. batching.py chooses among them, serving.py runs the program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.batching import bucket_of, plan
from asynctile.layers.caches import Caches
from asynctile.layers.decode import inputs_of, used
from asynctile.layers.requests import Request, spans

#: The logits of one row, (V,).
Logits = NDArray[np.float32]


class Selection:
    """The next rows of `requests`, at most `most_rows` on each device.

    rows: how many the program has on each device that it uses. pages: how many it visits there; 0 on a device without requests.
    """

    def __init__(self, requests: Sequence[Request], caches: Caches, most_rows: int) -> None:
        self._requests = [[one for one in requests if one.device == device] for device in range(len(caches))]
        self._parts = [
            plan([one.missing for one in own], [one.waited for one in own], most_rows) for own in self._requests
        ]
        self._positions = caches.positions
        self.rows = bucket_of(max(sum(part.count for part in own) for own in self._parts), most_rows)
        self.pages = tuple(
            cache.pages.visited if own else 0 for cache, own in zip(caches, self._requests, strict=True)
        )

    @property
    def devices(self) -> list[int]:
        """The devices that have rows, ascending."""
        return used(self.pages)

    def inputs(self) -> dict[str, NDArray[np.int32]]:
        """Return the inputs of the program."""
        return inputs_of(list(map(spans, self._requests, self._parts)), self._positions, self.rows, self.pages)

    def count(self, logits: NDArray[np.float32]) -> list[tuple[Request, Logits]]:
        """Count the rows as cached; return the requests that want a token now, each with its logits.

        logits: of the first rows of each device, (devices, rows, V).
        """
        found: list[tuple[Request, Logits]] = []
        for device, own in zip(self.devices, logits, strict=True):
            requests, parts = self._requests[device], self._parts[device]
            for part in parts:
                requests[part.index].cached += part.count
                requests[part.index].waited = 0
            found += zip((requests[part.index] for part in parts if part.wants), own, strict=False)
        return found
