"""The length of the graphs into which a device cuts a schedule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asynctile.execute.graphs.graph_template import SEEN_S, TURN_S, GraphTemplate
from asynctile.execute.graphs.recording import Recording
from asynctile.schedule.schedule import Schedule
from tests.schedule.paces import GPU
from tests.schedule.test_pieces import made_of, scheduled

NBYTES = 1 << 20


def recording_of(schedule: Schedule, *, in_turns: bool) -> Recording:
    device: Any = SimpleNamespace(recorder=object())
    template = GraphTemplate(schedule, {}, device, GPU, in_turns=in_turns)
    return template.bound(lambda place, shape, dtype: np.empty(0, dtype), np.zeros(1))


@pytest.mark.parametrize(("in_turns", "most_s"), [(True, TURN_S), (False, SEEN_S)])
def test_no_graph_is_longer_than_a_turn_or_than_a_watchdog_may_see_no_progress(
    in_turns: bool, most_s: float
) -> None:
    entry_s = GPU.operation_s + NBYTES / GPU.link_per_s
    count = int(3 * most_s / entry_s)
    schedule = made_of([scheduled("u", (), (), 0, NBYTES) for _ in range(count)], (0,))
    pieces = recording_of(schedule, in_turns=in_turns).pieces.pieces
    assert max(len(piece.nodes) for piece in pieces) * entry_s <= most_s * (1 + 1e-9)
    assert len(pieces) <= 4
