"""Clusters of Ray on this machine, and a small run on them. Only tests with the marker `ray` use this."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from asynctile.cli import main
from asynctile.ray import RayTrainer
from tests.cli.test_nodes import digests
from tests.ray.witness import ears, notes, witnessed
from tests.settle import HANG_S

STEPS = 6
#: Words of a worker that is left, or of Ray, which name a process that is gone.
_GONE = r"node \d+ .* was lost: |health check failed.*world_rank=\d+"
#: What a run can lose, and the words with which that is noticed.
LOSSES = {
    "killed worker": _GONE, "killed machine": _GONE, "stopped worker": r"node \d+ .* has been silent for 30 s",
}  # fmt: skip
#: The option that makes the steps of a run slow.
SLOW = {"callback": ["tests.ray.witness:Slow"]}
#: Ray's own settings. Seconds without room for a new start until Ray looks again at how much room there is: it may count a
#: lost machine for 20 s. Its default is 60 s.
SETTINGS = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5"}
RUN = {
    "device": "cpu", "replicas": 4, "batch_size": 4, "seq_len": 16, "validate_every": 2, "validation_tokens": 64,
    "save_every": 2, "schedule": "constant", "warmup": 1, "host_memory": "64MiB", "steps": STEPS,
}  # fmt: skip
#: Options of each machine: it needs no more memory.
_SMALL = {"object_store_memory": 80 << 20}


def prepare(folder: Path) -> dict[str, Any]:
    """Write data and a shape into a folder; return the options of the run."""
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}))
    return {**RUN, "data": folder / "text.txt", "model": folder / "config.json", "out": folder / "run"}


def words(options: Mapping[str, Any]) -> list[str]:
    """Return options as they are typed."""
    return [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]


def alone(folder: Path) -> dict[str, bytes]:
    """Return the digests of the run in a single process."""
    assert main(["train", *words(prepare(folder))]) == 0
    return digests(folder / "run")


def fit(folder: Path, workers: int | tuple[int, int], **more: Any) -> Any:
    """Do the run on the cluster that is connected; return Ray's result. more: further options."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    options = {**prepare(folder), **more}
    settings = RunConfig(name="run", storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=3),
                         callbacks=[ears(options["out"])])  # fmt: skip
    with mock.patch("asynctile.ray.trainer.work", witnessed), mock.patch.dict(os.environ, SETTINGS):
        return RayTrainer(options, scaling_config=ScalingConfig(num_workers=workers), run_config=settings).fit()


@contextmanager
def cluster(workers_each: int) -> Iterator[Any]:
    """Give a cluster of a head, where no worker has room, and of two machines with room for so many workers each.

    No worker outlives it.
    """
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **_SMALL})
    try:
        for _ in range(2):
            add_machine(made, workers_each)
        ray.init(address=made.address)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
    until_none_is_left()


def add_machine(made: Any, workers_each: int) -> None:
    """Add a machine with room for so many workers to a cluster."""
    made.add_node(num_cpus=workers_each, **_SMALL)


@dataclass(frozen=True)
class Recovery:
    """How a run got over a loss.

    result: of Ray. noticed_s: seconds from the loss until a worker that was left had ended, with an error that names the loss,
    or until Ray named it. by: which of them was first. went_on_s: seconds from the loss until the run went on.
    """

    result: Any
    noticed_s: float
    by: str
    went_on_s: float


def fit_with_a_loss(
    made: Any, folder: Path, count: int | tuple[int, int], lost: str, *, which: int, step: int, after_s: float
) -> Recovery:
    """Do the run on `count` workers, which has a loss so long after a step.

    lost: one of LOSSES. which: of the workers, by age, or of the machines.
    """
    with ThreadPoolExecutor(1) as pool:
        fitting = pool.submit(fit, folder, count, **SLOW)
        until_step(folder, step)
        time.sleep(after_s)
        at = time.time()
        if lost == "killed machine":
            made.remove_node(list(made.worker_nodes)[which], allow_graceful=False)
        else:
            worker = sorted(workers(), key=lambda process: process.pid)[which]
            worker.kill() if lost == "killed worker" else worker.suspend()
        result = fitting.result(10 * HANG_S)
    noted = [note for note in notes(folder / "run") if note["at"] > at]
    named = [note for note in noted if re.search(LOSSES[lost], note.get("lost", ""), re.DOTALL)]
    assert named, f"nobody named the loss: {noted}"
    (went_on,) = (note for note in noted if "began" in note)
    return Recovery(result, named[0]["at"] - at, named[0]["by"], went_on["at"] - at)


def workers() -> Iterator[psutil.Process]:
    """Yield the processes in which workers of Ray Train run."""
    for process in psutil.process_iter(["cmdline"]):
        if any("RayTrainWorker" in word for word in process.info["cmdline"] or ()):
            yield process


def until_none_is_left() -> None:
    """Wait until no worker of Ray Train is left."""
    end = time.monotonic() + HANG_S
    while left := list(workers()):
        assert time.monotonic() < end, f"{left} are left"
        time.sleep(0.1)


def until_step(folder: Path, step: int) -> None:
    """Wait until the run has done this step."""
    end = time.monotonic() + HANG_S
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and f'"step": {step}' in metrics.read_text()):
        assert time.monotonic() < end, f"no step {step} in {metrics}"
        time.sleep(0.02)
