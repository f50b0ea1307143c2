"""Does a training under any limit of address space either train or end with one line?

    python bench/bench_limits.py [--first 400000] [--last 1500000] [--step 20000] [--patience-s 90] [--write]

`asynctile train` makes four steps of its small model, in a process of its own for each limit (`ulimit -v`, KiB) and each way to
set the RAM for tiles: no option, and `--host-memory 16MiB`. Each process should end with status 0 and nothing on stderr, or
with status 2 and one line there. A process that takes longer than the patience counts as hung. Kernels are compiled before the
first process, without a limit.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common import Table, arguments, publish

from asynctile.kernels.cpu import warm

TRAIN = ("train", "--steps", "4", "--batch-size", "2", "--seq-len", "32", "--data")
WAYS = {"no cap given": (), "--host-memory 16MiB": ("--host-memory", "16MiB")}
TRAINS, ONE_LINE, BAD = "trains", "one line", "BAD"


def verdict(folder: Path, words: Sequence[str], kib: int, patience_s: float) -> tuple[str, str]:
    """Return the outcome of a training in `folder`, and the last line that it printed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (kib * 1024, kib * 1024))

    command = [sys.executable, "-m", "asynctile", *TRAIN, "text.txt", "--out", f"{kib}-{len(words)}", *words]
    try:
        ran = subprocess.run(
            command, cwd=folder, preexec_fn=limit, capture_output=True, text=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired:
        return BAD, f"hung for {patience_s:g} s"
    lines = ran.stderr.splitlines()
    if (ran.returncode, lines) == (0, []):
        return TRAINS, ""
    return ONE_LINE if (ran.returncode, len(lines)) == (2, 1) else BAD, f"status {ran.returncode}: {lines[-1] if lines else ''}"


def main() -> None:
    options = arguments(__doc__, first=400_000, last=1_500_000, step=20_000, patience_s=90.0)
    warm()
    table = Table("what became of it", ["ulimit -v, KiB", *WAYS, "what it said, no cap given"])
    counted: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
        for kib in range(options.first, options.last + 1, options.step):
            ends = {way: verdict(folder, words, kib, options.patience_s) for way, words in WAYS.items()}
            for way, (what, _) in ends.items():
                counted[way][what] += 1
            table.rows.append((kib, *(what for what, _ in ends.values()), next(iter(ends.values()))[1]))
            print(*table.rows[-1], flush=True)
    sums = Table("in all", ["", TRAINS, ONE_LINE, BAD])
    sums.rows = [(way, *(counts[what] for what in (TRAINS, ONE_LINE, BAD))) for way, counts in counted.items()]
    publish("bench_limits", __doc__, {"training": " ".join(TRAIN[:-1])}, [sums, table], write=options.write)


if __name__ == "__main__":
    main()
