"""Runs of several processes: `asynctile train --nodes`, from two shells as it were."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli.follower import follow_run
from asynctile.cli.interrupt import Interrupt
from asynctile.storage.tensors import TensorReader
from tests.laws import law
from tests.nodes.meetings import free_address, join
from tests.settle import HANG_S

RUN = ["--device", "cpu", "--replicas", "4", "--batch-size", "4", "--seq-len", "16", "--validate-every", "2",
       "--validation-tokens", "64", "--save-every", "2", "--schedule", "constant", "--warmup", "1"]  # fmt: skip


class Shell:
    """Starts nodes, each a process, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
        (folder / "config.json").write_text(json.dumps({
            "model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}))

    def train(self, *args: str, secret: str = "a secret of sixteen", on: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start `asynctile train`. on: words in front of the command."""
        command = [*on, sys.executable, "-m", "asynctile", "train", *args]
        environment = {**os.environ, "ASYNCTILE_SECRET": secret}
        node = subprocess.Popen(command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)
        self.started.append(node)
        return node

    def nodes(self, count: int, out: str, *first: str, steps: int = 4) -> list[tuple[int, str]]:
        """Run all nodes of a run to the end; return status and output of each."""
        host, port = free_address()
        place = ["--nodes", str(count), "--join", f"{host}:{port}", "--host-memory", "64MiB"]
        place = place if count > 1 else place[4:]
        new = [*RUN, "--data", "text.txt", "--model", "config.json"]
        started = [self.train(*place, "--out", out, "--steps", str(steps), *(first or new))]
        started += [self.train(*place, "--node", str(node)) for node in range(1, count)]
        return [(node.wait(HANG_S), node.communicate()[0]) for node in started]

    def pair(self, *first: str, other: Sequence[str] = ()) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """Start the two nodes of the run `run`. first, other: further options of node 0 and node 1."""
        host, port = free_address()
        place = ["--nodes", "2", "--join", f"{host}:{port}"]
        new = ["--data", "text.txt", "--model", "config.json", "--out", "run"]
        return self.train(*RUN, *place, *new, *first), self.train(*place, "--node", "1", *other)

    def close(self) -> None:
        for node in self.started:
            node.kill()
            node.wait()
            if node.stdout is not None:
                node.stdout.close()


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    made = Shell(tmp_path)
    yield made
    made.close()


def digests(run: Path) -> dict[str, bytes]:
    """Return the tensors of a run's newest checkpoint, in however many files, and its losses."""
    newest, found = max((run / "checkpoints").glob("step-*")), dict[str, bytes]()
    for file in ("model.safetensors", "optimizer.safetensors"):
        with TensorReader(newest / file) as reader:
            found |= {name: reader.read(name).tobytes() for name in reader.names()}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {**found, "losses": json.dumps([line["loss"] for line in lines if "loss" in line]).encode()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The digests of the run on one node."""
    shell = Shell(tmp_path_factory.mktemp("alone"))
    try:
        ((status, text),) = shell.nodes(1, "run")
        assert status == 0, text
        return digests(shell.folder / "run")
    finally:
        shell.close()


@pytest.mark.parametrize(("before", "after"), [law(2, 2), (2, 1), law(1, 3), law(3, 2)])
def test_a_run_has_the_same_bytes_on_any_number_of_nodes(
    shell: Shell, alone: dict[str, bytes], before: int, after: int, tmp_path: Path
) -> None:
    for status, text in (*shell.nodes(before, "run", steps=2), *shell.nodes(after, "run", "--resume")):
        assert status == 0, text
    assert digests(tmp_path / "run") == alone
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    moved = [line["sent_bytes"] > 0 and line["received_bytes"] > 0 for line in lines if "loss" in line]
    assert moved == [before > 1] * 2 + [after > 1] * 2


@pytest.mark.laws
def test_a_run_that_updates_on_the_hosts_of_two_nodes_has_the_same_bytes(
    shell: Shell, alone: dict[str, bytes], tmp_path: Path
) -> None:
    new = ["emulated" if word == "cpu" else word for word in RUN]
    new += ["--data", "text.txt", "--model", "config.json", "--update", "host"]
    for status, text in shell.nodes(2, "run", *new):
        assert status == 0, text
    assert digests(tmp_path / "run") == alone


def test_a_wrong_secret_ends_the_node_and_not_the_meeting(shell: Shell) -> None:
    host, port = free_address()
    with ThreadPoolExecutor(1) as pool:
        hosting = pool.submit(join, 0, 2, (host, port))
        stranger = shell.train("--nodes", "2", "--join", f"{host}:{port}", "--node", "1", secret="another of sixteen letters")
        assert stranger.wait(HANG_S) == 2 and "the secrets differ" in stranger.communicate()[0]
        with join(1, 2, (host, port)), hosting.result(HANG_S):
            pass


def until(node: subprocess.Popen[str], found: Callable[[], bool]) -> None:
    """Wait until something is there, while a node runs."""
    end = time.monotonic() + HANG_S
    while not found():
        assert node.poll() is None and time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("who", [0, law(1)])
def test_ctrl_c_on_any_node_stops_all_after_one_step_with_a_checkpoint(shell: Shell, who: int, tmp_path: Path) -> None:
    nodes = shell.pair("--steps", "100000", "--save-every", "100000")
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(nodes[0], lambda: metrics.exists() and metrics.stat().st_size > 0)
    nodes[who].send_signal(signal.SIGINT)
    assert [node.wait(HANG_S) for node in nodes] == [130, 130]
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    last = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert checkpoint.name == f"step-{last:06}" and f"{checkpoint.name} is saved" in nodes[0].communicate()[0]
    assert "node 1 stopped with the others" in nodes[1].communicate()[0]


def test_ctrl_c_ends_the_wait_for_other_nodes_at_once(shell: Shell, tmp_path: Path) -> None:
    host, port = free_address()
    node = shell.train(*RUN, "--nodes", "2", "--join", f"{host}:{port}", "--data", "text.txt", "--model", "config.json",
                       "--out", "run")  # fmt: skip
    until(node, lambda: is_taken(host, port))
    node.send_signal(signal.SIGINT)
    assert node.wait(HANG_S) == 130  # and not 2, as when nobody comes
    assert not (tmp_path / "run").exists()


def is_taken(host: str, port: int) -> bool:
    """Return whether somebody listens at an address."""
    with socket.socket() as one:
        return one.connect_ex((host, port)) == 0


@pytest.mark.parametrize(("given", "words"), [
    ({"lr": 0.1}, "--lr is for node 0, from which node 1 takes it; leave it out"),
    ({"resume": True}, "--resume is for node 0"),
])  # fmt: skip
def test_the_options_of_a_run_belong_to_node_0(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        asyncio.run(follow_run({"nodes": 2, "node": 1, "join": ("127.0.0.1", 1), **given}, Interrupt()))


@pytest.mark.laws
def test_a_node_that_does_not_see_the_run_ends_all(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    leader, follower = shell.pair("--steps", "1", other=("--out", "other"))
    assert (leader.wait(HANG_S), follower.wait(HANG_S)) == (2, 2)
    assert "node 1 does not see the run's folder in other" in follower.communicate()[0]
    assert "gave up: node 1 does not see the run's folder in other" in leader.communicate()[0]


@pytest.mark.laws
def test_a_node_that_sees_a_copy_of_the_run_ends_all_before_a_step(shell: Shell, tmp_path: Path) -> None:
    shell.nodes(1, "run", steps=2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    host, port = free_address()
    place = ["--nodes", "2", "--join", f"{host}:{port}"]
    nodes = [shell.train(*place, "--resume", "--steps", "4", "--out", "run"),
             shell.train(*place, "--node", "1", "--out", "copy")]
    for node in nodes:
        assert "node 1 does not see the run's folder in copy" in node.communicate(timeout=HANG_S)[0] and node.returncode == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 2 and not list(tmp_path.glob("*/.begins-*"))


def test_a_killed_node_is_named_by_the_others_which_keep_their_checkpoints(shell: Shell, tmp_path: Path) -> None:
    leader, follower = shell.pair("--steps", "100000")
    until(leader, lambda: bool(list((tmp_path / "run").glob("checkpoints/step-*"))))
    follower.send_signal(signal.SIGKILL)
    assert leader.wait(HANG_S) == 2 and "node 1 (127.0.0.1:" in (text := leader.communicate()[0]) and "was lost" in text
