"""The tables of a schedule name the device that carries out each entry."""

from itertools import pairwise

import numpy as np

from asynctile.execute.workers.calls import Calls
from asynctile.execute.workers.tables import ANY_DEVICE, COPY, DOWNLOAD, OPERATION
from asynctile.kernels.cpu import KERNELS
from asynctile.kernels.cpu.jit import prepare
from asynctile.ops import copy, fill
from asynctile.program.program import Program
from asynctile.schedule.decide import Cut, Space, decide
from asynctile.schedule.rates import CORES
from asynctile.schedule.schedule import RAM, Kind
from asynctile.storage.tile import Tile
from tests.by_hand import on_host
from tests.execute.devices import spread


def step():
    """Return the schedule of a step that loads, computes on the device and on the host, writes back and fetches."""
    prepare("copy")
    prepare("fill")
    program, tiles = Program("a step"), [Tile(f"w{n}", (16,), np.float32, persistent=True) for n in range(12)]
    for source, target in pairwise(tiles):
        program.add(copy(source, target))
    program.add(on_host(fill(tiles[0], 1.0)))
    program.fetch(tiles[3], "y", ())
    return decide(program.finish(), Space(Cut(64, 4 * 64, {}), Cut(64, None, {}), None, 2, CORES))


def test_entries_have_their_device_and_operations_of_the_host_have_none():
    schedule = spread(step(), 3, 0)
    tables = Calls(schedule, KERNELS, True).bound(lambda place, shape, dtype: np.zeros(shape, dtype), np.zeros(1))
    of_host = [entry.kind is Kind.OPERATION and entry.places[0].tier == RAM for entry in schedule.entries]
    assert tables.devices[of_host].tolist() == [ANY_DEVICE]
    assert all(device == entry.device for device, entry in zip(tables.devices, schedule.entries, strict=True) if device >= 0)
    assert {*tables.devices[tables.kinds == OPERATION].tolist()} == {ANY_DEVICE, 0, 1, 2}
    assert tables.kinds[[entry.kind is Kind.FETCH for entry in schedule.entries]].tolist() == [DOWNLOAD]


def test_without_a_link_everything_is_work_of_the_one_device():
    program, tiles = Program("in RAM"), [Tile(f"w{n}", (16,), np.float32, persistent=True) for n in range(2)]
    prepare("copy")
    program.add(copy(*tiles))
    program.fetch(tiles[1], "y", ())
    schedule = decide(program.finish(), Space(Cut(64, None, {}), None, None, 2, CORES))
    tables = Calls(schedule, KERNELS, False).bound(lambda place, shape, dtype: np.zeros(shape, dtype), np.zeros(1))
    assert tables.kinds.tolist() == [OPERATION, COPY] and tables.devices.tolist() == [0, 0]
