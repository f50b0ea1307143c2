"""`asynctile train --ray ADDRESS`: connects to a cluster, runs the options there, and says how that ended."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asynctile.cli.interrupt import EXIT_STATUS
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.terminal import say
from asynctile.device.names import names_of
from asynctile.errors import AsynctileError, NodeError
from asynctile.nodes.wire import reason
from asynctile.ray.choices import checked
from asynctile.ray.trainer import new_trainer, require

__all__ = ["run"]

#: The address for a cluster of this machine, which ends with the run, and for the one that Ray finds here.
_LOCAL, _FOUND = "local", "auto"
#: Lost workers until the run ends.
_MAX_FAILURES = 3
#: Seconds to connect to a cluster. Ray itself tries for over a minute, and then ends the process.
_CONNECT_S = 5.0
#: After the name of a run's folder: where Ray keeps its state and the newest checkpoint of the run.
_BESIDE = "-ray"


def run(given: Mapping[str, Any]) -> int:
    """Train on the workers of the cluster that --ray names; return the exit status."""
    nodes = given.get("nodes", 1)
    options = checked(given, nodes)  # before Ray, which takes seconds
    resources = resources_of(options)
    ray, train = require("ray"), require("ray.train")
    _connect(ray, given["ray"], nodes)
    try:
        scaling = train.ScalingConfig(num_workers=nodes, placement_strategy="SPREAD", **resources)
        out = options["out"]
        settings = train.RunConfig(
            name=os.path.basename(out), storage_path=out + _BESIDE, checkpoint_config=train.CheckpointConfig(num_to_keep=1),
            failure_config=train.FailureConfig(max_failures=_MAX_FAILURES))  # fmt: skip
        try:
            new_trainer({**given, "out": out}, scaling, settings).fit()
        except train.TrainingFailedError as error:
            way = "--resume continues from its newest checkpoint" if RunFolder.holds_run(Path(out)) else "it has not begun"
            raise AsynctileError(f"the run {out} failed on Ray, which starts it {_MAX_FAILURES} times more: {_cause(error)}; "
                                 f"{way}") from error
        except (KeyboardInterrupt, SystemExit):  # Ray ends all workers and the process after Ctrl-C, with status 0
            say(f"asynctile train: stopped; --resume --out {out} continues from the run's newest checkpoint, if it has one\n")
            return EXIT_STATUS
    finally:
        ray.shutdown()
    say(f"asynctile train: the run in {out} is done; {out}{_BESIDE} holds Ray's state and may be deleted\n")
    return 0


def _connect(ray: Any, address: str, nodes: int) -> None:
    """Connect to a cluster. NodeError if there is none at this address."""
    if address == _LOCAL:
        ray.init(address=_LOCAL, num_cpus=max(nodes, os.cpu_count() or 1), include_dashboard=False)
        return
    try:
        if address != _FOUND:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(address=address)
    except (OSError, ValueError) as error:  # Ray's ConnectionError is an OSError
        what = reason(error) if isinstance(error, OSError) else "expected HOST:PORT, auto or local"
        raise NodeError(f"no cluster of Ray can be reached at --ray {address}: {what}; `ray start --head` starts one, and "
                        "--ray local needs none") from error


def resources_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Ray must give each worker: Ray hides all GPUs from a worker that asks for none.

    ValueError for GPUs that are not numbered from 0, as Ray numbers those of each worker.
    """
    devices = names_of(options["device"])
    gpus = sum(name.startswith("cuda") for name in devices)
    if gpus and devices != tuple(f"cuda:{number}" for number in range(gpus)):
        raise ValueError(f"--device {options['device']} does not go with Ray, which numbers the GPUs of each worker from 0; "
                         "use cuda:0, or cuda:0-3 for four")
    return {"use_gpu": True, "resources_per_worker": {"CPU": 1, "GPU": gpus}} if gpus else {}


def _cause(error: Any) -> BaseException:
    """Return the error of the worker with the lowest number, without the trace that Ray puts around it."""
    failures = getattr(error, "worker_failures", None)
    first = failures[min(failures)] if failures else error
    return getattr(first, "_base_exc", first)
