"""`RayTrainer`: a run of `asynctile train` whose nodes are the workers of Ray Train."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from asynctile.ray.choices import as_typed, checked, most_workers
from asynctile.ray.worker import work

__all__ = ["RayTrainer", "new_trainer"]

#: Where Ray has the class for loops of any kind. Ray calls it an API for developers.
_TRAINER = "ray.train.v2.api.data_parallel_trainer"


class RayTrainer:
    """A run of `asynctile train` on the workers of the Ray cluster that the program is connected to. Each is a node.

    options: those of `asynctile train` by name, such as {"data": "text.txt", "replicas": 4}, and `resume` to go on with the run
    in `out`. All workers must see that folder. scaling_config, run_config: of ray.train. The number of workers changes no bit
    of the result. With a range, such as num_workers=(1, 4), Ray starts as many as there is room for. When a worker is lost, it
    starts the run again from the newest checkpoint, at most `max_failures` times, on as many as are left. The run goes to
    `out`; Ray keeps a copy of each checkpoint, and the metrics of its step, in `storage_path`. `max_time` counts from now
    on, over all starts.

    ValueError for options that do not fit together, and without the package ray.
    """

    def __init__(self, options: Mapping[str, Any], *, scaling_config: Any = None, run_config: Any = None) -> None:
        self._trainer = new_trainer(as_typed(options), scaling_config, run_config)

    def fit(self) -> Any:
        """Train to the end and return Ray's Result: `metrics`, and the newest `checkpoint`, which `Trainer.load` takes.

        Raises ray.train.TrainingFailedError after more failures than `max_failures`.
        """
        return self._trainer.fit()


def new_trainer(given: Mapping[str, Any], scaling_config: Any, run_config: Any) -> Any:
    """Return Ray's trainer for a run with typed options. `max_time` counts from now on. ValueError as for RayTrainer."""
    trainer = require(_TRAINER).DataParallelTrainer
    scaling = require("ray.train").ScalingConfig() if scaling_config is None else scaling_config
    options = checked(given, most_workers(scaling.num_workers))
    limit_s = options.get("max_time")
    config = {"given": options, "folder": os.getcwd(), "end_s": None if limit_s is None else time.time() + limit_s}
    return trainer(work, train_loop_config=config, scaling_config=scaling, run_config=run_config)


def require(module: str) -> Any:
    """Return a module of Ray. ValueError, which names the extra, if Ray is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"runs on Ray need the package ray[train] ({error}); pip install 'asynctile[ray]'") from error
