"""What a worker of Ray Train does: it takes part in a run as a node, in the thread that Ray gives it.

Covers `work`, and how the workers of one start meet. Tiles and agreements go by asynctile's own exchange. Ray carries the
address of node 0, a secret, metrics and checkpoints.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asynctile.cli.follower import follow_run, own_options
from asynctile.cli.interrupt import Interrupt
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.train import train
from asynctile.errors import AsynctileError
from asynctile.nodes.secret import VARIABLE

__all__ = ["work"]

#: The callback through which node 0 reports to Ray.
_REPORTS = "asynctile.ray.reports:Reports"


def work(config: Mapping[str, Any]) -> None:
    """Take part in the run as this worker.

    config: `given`, the options; `folder`, where relative paths begin; `end_s`, the time at which `max_time` is over, or None.
    """
    from ray.train import get_context

    context = get_context()
    node, nodes = context.get_world_rank(), context.get_world_size()
    if os.path.isdir(config["folder"]):
        os.chdir(config["folder"])
    given = {**config["given"], **(_meeting(node, nodes) if nodes > 1 else {})}
    if nodes == 1:
        given.pop("network", None)  # an option of several nodes, of which this start has one
    if config["end_s"] is not None:  # may be the run's second start
        given["max_time"] = max(0.0, config["end_s"] - time.time())
    status = asyncio.run(_follow(given) if node else _lead(given))
    if status:
        raise AsynctileError(f"node {node} stopped before the end of the run, with status {status}")


async def _lead(given: Mapping[str, Any]) -> int:
    """Do the run as node 0. It goes on where an earlier start, or the run to resume, has left it."""
    reporting = {**given, "callback": (*given.get("callback", ()), _REPORTS)}
    if RunFolder.holds_run(Path(given["out"])):
        reporting.pop("auto", None)  # has chosen already
        reporting["resume"] = True
    return await train(reporting, Interrupt())


async def _follow(given: Mapping[str, Any]) -> int:
    """Take part as another node. Ray takes a report from all workers or none, and node 0 reports a step later than it saves.

    So reports wait in a thread of their own while steps go on.
    """
    from ray.train import report

    pool = ThreadPoolExecutor(1, "reports")
    try:
        status = await follow_run(own_options(given), Interrupt(), lambda: pool.submit(report, {}))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # Ray ends a report for which others have gone
        raise
    await asyncio.to_thread(pool.shutdown)
    return status


def _meeting(node: int, nodes: int) -> dict[str, Any]:
    """Return the options with which this worker meets the others of this start. All workers call this together."""
    from ray.train.collective import broadcast_from_rank_zero

    address, secret = broadcast_from_rank_zero((_free_address(), secrets.token_hex()) if node == 0 else None)
    os.environ[VARIABLE] = secret
    return {"nodes": nodes, "node": node, "join": tuple(address)}


def _free_address() -> tuple[str, int]:
    """Return this machine's address within the cluster, with a free port."""
    from ray.util import get_node_ip_address

    host = get_node_ip_address()
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return host, port
