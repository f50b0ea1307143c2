"""Clusters of Ray on this machine, and a small run on them. Only tests with the marker `ray` use this."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import psutil

from asynctile.cli import main
from asynctile.ray import RayTrainer
from tests.cli.test_nodes import digests
from tests.settle import HANG_S

STEPS = 6
#: Seconds of a slow step.
SLOW_S = 0.5
#: What a run can lose.
LOSSES = ("worker", "machine")
RUN = {
    "device": "cpu", "replicas": 4, "batch_size": 4, "seq_len": 16, "validate_every": 2, "validation_tokens": 64,
    "save_every": 2, "schedule": "constant", "warmup": 1, "host_memory": "64MiB", "steps": STEPS,
}  # fmt: skip


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

    trainer = RayTrainer(
        {**prepare(folder), **more}, scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=3)))
    return trainer.fit()


@contextmanager
def cluster() -> Iterator[Any]:
    """Give a cluster of a head, where no worker has room, and of two machines with two workers each. No worker outlives it."""
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        made.machines = [made.add_node(num_cpus=2, **small) for _ in range(2)]
        ray.init(address=made.address)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
    assert not list(workers())


def fit_with_a_loss(made: Any, folder: Path, lost: str, step: int, after_s: float) -> Any:
    """Do the run, which loses a worker or a machine so long after a step; return Ray's result. lost: one of LOSSES."""
    with chdir(folder), ThreadPoolExecutor(1) as pool:  # the callback is imported from there
        fitting = pool.submit(fit, folder, (1, 4), **make_slow(folder))
        until_step(folder, step)
        time.sleep(after_s)
        if lost == "worker":
            kill(max(workers(), key=lambda process: process.pid))
        else:
            made.remove_node(made.machines[1], allow_graceful=False)
        return fitting.result(10 * HANG_S)


def workers() -> Iterator[psutil.Process]:
    """Yield the processes in which workers of Ray Train run."""
    for process in psutil.process_iter(["cmdline"]):
        if any("RayTrainWorker" in word for word in process.info["cmdline"] or ()):
            yield process


def until_step(folder: Path, step: int) -> None:
    """Wait until the run has done this step."""
    end = time.monotonic() + HANG_S
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and f'"step": {step}' in metrics.read_text()):
        assert time.monotonic() < end, f"no step {step} in {metrics}"
        time.sleep(0.02)


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def make_slow(folder: Path) -> dict[str, Any]:
    """Write a callback that makes each step take SLOW_S, so that a kill comes in the middle; return its option."""
    (folder / "slow.py").write_text(
        "import time\n\nfrom asynctile.callbacks import Callback\n\n\nclass Slow(Callback):\n"
        f"    def step(self, report):\n        time.sleep({SLOW_S})\n")
    return {"callback": ["slow:Slow"]}
