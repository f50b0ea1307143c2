"""The rows of the next run: each device computes the texts that it holds, and each text gets its own logits."""

from __future__ import annotations

import numpy as np

from asynctile.layers.caches import Caches
from asynctile.layers.requests import Request
from asynctile.layers.sampling import Sampler, Sampling
from asynctile.layers.selection import Selection
from tests.layers.test_caches import PARAMETERS


def requests_on(caches: Caches, *places: tuple[int, int]) -> list[Request]:
    """Return requests with pages. places: (device, tokens of the prompt) of each."""
    found = []
    for device, tokens in places:
        request = Request(range(tokens), 2, Sampler(Sampling()))
        request.device, request.pages = device, caches[device].pages.reserve(2)
        found.append(request)
    return found


def test_a_device_without_selected_requests_has_no_pages_and_the_busiest_one_decides_the_rows() -> None:
    caches = Caches(PARAMETERS, 4, 40)
    requests = requests_on(caches, (0, 1), (2, 3), (2, 1), (0, 2), (3, 1))[:4]
    selection = Selection(requests, caches, 16)
    assert selection.devices == [0, 2] and selection.pages == (4, 0, 4, 0)
    assert selection.rows == 4, "for four rows on device 2, and not for seven on both"
    assert Selection(requests[:1], caches, 16).rows == 1
    assert {name.partition("[")[2] for name in selection.inputs()} == {"0]", "1]"}


def test_a_request_gets_the_logits_of_its_last_row_and_its_rows_count_as_cached() -> None:
    caches = Caches(PARAMETERS, 3, 40)
    requests = requests_on(caches, (2, 9), (1, 1), (2, 1), (1, 2))
    for request in requests:
        request.waited = 5
    selection = Selection(requests, caches, 4)
    tokens, rows = (selection.inputs()[f"{name}[1]"] for name in ("tokens", "rows"))
    logits = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3)
    found = selection.count(logits)
    assert [(request, float(row[0])) for request, row in found] == [(requests[1], 0.0), (requests[3], 3.0), (requests[2], 12.0)]
    assert tokens[0] == 0 and rows[0] == requests[2].pages[0]
    assert [request.cached for request in requests] == [3, 1, 1, 2] and not any(request.waited for request in requests)
