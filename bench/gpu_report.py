"""The short table that comes last: the targets of each part of bench/gpu.sh, and its results.

    python bench/gpu_report.py check DEVICE                          print one line on the GPU, or why there is none (status 1)
    python bench/gpu_report.py table DEVICE PART:STATUS:SECONDS ...  print the table of these parts

DEVICE: "cuda:0", or "soft" for a rehearsal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from common import Table
from gpu_record import folder_of, gpu_facts, no_gpu, read, results_name

#: Exit statuses of a part that timeout(1) stopped, and gpu.sh's status for a part without time left.
STOPPED, NO_TIME = (124, 137), -1


def ended(status: int, seconds: int) -> str:
    """Return how a part ended, in words."""
    if status == NO_TIME:
        return "not run: the time was up"
    if status in STOPPED:
        return f"stopped after {seconds} s; rows before that count"
    return f"{seconds} s" if status == 0 else f"status {status} after {seconds} s"


def short_table(whole: dict[str, Any] | None, ran: Sequence[tuple[str, int, int]]) -> Table:
    """Return the headlines of the parts that ran."""
    table = Table("bench/gpu.sh", ("part", "what", "measured", "wanted"))
    for part, status, seconds in ran:
        table.rows.append((part, ended(status, seconds), None, None))
        content = (whole or {"parts": {}})["parts"].get(part)
        if content is not None and status != NO_TIME:
            table.rows += [("", *row) for row in content["tables"][-1]["rows"]]
    return table


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("check", "table"):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    device = arguments[1]
    if device != "soft" and (why := no_gpu()):
        print(f"bench/gpu.sh: no GPU here: {why}; --rehearse runs without a GPU", file=sys.stderr)
        return 1
    facts = gpu_facts(device)
    named = ("gpu", "gpu_memory", "driver", "cupy", "commit")
    print(", ".join(f"{name} {facts[name]}" for name in named if name in facts))
    if arguments[0] == "table":
        ran = [(part, int(status), int(seconds)) for part, status, seconds in (item.split(":") for item in arguments[2:])]
        print(short_table(read(folder_of(device) / f"{results_name(facts['gpu'], facts['day'])}.json"), ran).text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
