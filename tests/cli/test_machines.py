"""Nodes on two machines, with addresses of their own and other paths to the folder that they share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machines import IPV4, IPV6, Machine, two_machines
from tests.cli.test_nodes import RUN, Shell, digests, until
from tests.settle import HANG_S

PORT = 29500
#: A node that shares a word with the other one, and another word once it is told to.
_NODE = """
import sys
from asynctile.errors import NodeError
from asynctile.nodes import TcpExchange

node, host, port, patience_s = sys.argv[1:]
with TcpExchange.meet(int(node), 2, (host, int(port)), b"a secret of sixteen", {}, patience_s=float(patience_s)) as exchange:
    exchange.share("first", b"")
    print("met", flush=True)
    sys.stdin.readline()
    try:
        exchange.share("second", b"")
    except NodeError as error:
        print(error)
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    made = two_machines(tmp_path)
    try:
        pair = made.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this system makes no machines in one: {error}")
    yield pair
    made.__exit__(None, None, None)


class Rooms(Shell):
    """A shell on each of two machines. Node N is on the first one if N is even."""

    def __init__(self, folder: Path, machines: tuple[Machine, Machine]) -> None:
        super().__init__(folder)
        self.machines = machines

    def node(self, number: int, count: int, run: str, *more: str, host: str = IPV4[0], at: int | None = None) -> Any:
        """Start node `number` of `count`, which joins at `host`. at: its machine."""
        where = number % 2 if at is None else at
        place = ["--nodes", str(count), "--join", f"{host}:{PORT}", "--out", f"{('here', 'there')[where]}/{run}"]
        if number:
            place += ["--node", str(number)]
        elif not more:
            more = (*RUN, "--data", "text.txt", "--model", "config.json", "--steps", "4")
        return self.train(*place, *more, on=self.machines[where].enter(self.folder))


@pytest.fixture
def rooms(tmp_path: Path, machines: tuple[Machine, Machine]) -> Iterator[Rooms]:
    made = Rooms(tmp_path, machines)
    yield made
    made.close()


def test_a_pulled_cable_is_noticed_by_silence_on_both_machines(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    nodes = [subprocess.Popen([*machine.enter(tmp_path), sys.executable, "-c", _NODE, str(node), IPV6[0], str(PORT), "4"],
                              text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
             for node, machine in enumerate(machines)]  # fmt: skip
    for node in nodes:
        assert node.stdout is not None and node.stdout.readline() == "met\n"
    machines[1].do("ip link set cable down")
    for other, node in enumerate(nodes):
        said = node.communicate("\n", HANG_S)[0]
        assert f"node {1 - other} ([{IPV6[1 - other]}]:" in said and "has been silent for 4 s" in said and not node.returncode


@pytest.mark.laws
@pytest.mark.parametrize(("count", "host"), [(2, IPV4[0]), (3, f"[{IPV6[0]}]"), (2, "leader")])
def test_two_machines_have_the_bytes_of_one(rooms: Rooms, tmp_path: Path, count: int, host: str) -> None:
    (hosts := tmp_path / "hosts").write_text(f"{IPV4[0]} leader\n{IPV6[0]} leader\n")
    for machine in rooms.machines:
        machine.do(f"mount --bind {hosts} /etc/hosts")
    if host == "leader":
        rooms.machines[1].do(f"ip addr del {IPV6[1]}/64 dev cable")  # it must find the other address
    for node in [rooms.node(number, count, "run", host=host) for number in reversed(range(count))]:
        said = node.communicate(timeout=HANG_S)[0]
        assert node.returncode == 0, said
    ((status, said),) = rooms.nodes(1, "alone")
    assert status == 0 and digests(tmp_path / "shared" / "run") == digests(tmp_path / "alone"), said


@pytest.mark.laws
def test_a_training_whose_cable_is_pulled_ends_within_a_minute_and_goes_on_alone(rooms: Rooms, tmp_path: Path) -> None:
    new = (*RUN, "--data", "text.txt", "--model", "config.json", "--steps", "100000")
    nodes = [rooms.node(0, 2, "run", *new), rooms.node(1, 2, "run")]
    run = tmp_path / "shared" / "run"
    until(nodes[0], lambda: bool(list(run.glob("checkpoints/step-*"))))
    rooms.machines[0].do("ip link set cable down")
    began_s = time.monotonic()
    for other, node in enumerate(nodes):
        said = node.communicate(timeout=HANG_S)[0]
        assert node.returncode == 2 and f"node {1 - other} ({IPV4[1 - other]}:" in said and "has been silent for 30 s" in said
    assert time.monotonic() - began_s < 60
    steps = int(max(run.glob("checkpoints/step-*")).name.removeprefix("step-")) + 2
    ended = rooms.nodes(1, "shared/run", "--resume", steps=steps) + rooms.nodes(1, "alone", steps=steps)
    assert [status for status, _ in ended] == [0, 0] and digests(run) == digests(tmp_path / "alone"), ended


@pytest.mark.laws
def test_a_node_that_cannot_reach_another_one_names_it_and_all_end(rooms: Rooms) -> None:
    nodes = [rooms.node(0, 3, "run", host="0.0.0.0"), rooms.node(1, 3, "run", host="127.0.0.1", at=0),
             rooms.node(2, 3, "run", at=1)]  # fmt: skip
    said = [node.communicate(timeout=HANG_S)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2, 2]
    assert "node 2 (" in said[0] and "node 0 left before all had met" in said[1]
    assert "nothing can be reached at 127.0.0.1:" in said[2] and "whether node 1 runs there" in said[2]


@pytest.mark.laws
def test_a_machine_that_has_another_path_to_the_folder_must_name_it(rooms: Rooms, tmp_path: Path) -> None:
    nodes = [rooms.node(0, 2, "run"), rooms.train(
        "--nodes", "2", "--join", f"{IPV4[0]}:{PORT}", "--node", "1", on=rooms.machines[1].enter(tmp_path))]
    for node in nodes:
        said = node.communicate(timeout=HANG_S)[0]
        assert node.returncode == 2 and f"node 1 does not see the run's folder in {tmp_path}/here/run" in said
