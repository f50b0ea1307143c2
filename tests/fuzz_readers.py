"""Do damage to files for some minutes and see whether a reader fails in another way than by one short sentence.

    python tests/fuzz_readers.py --minutes 15 [--seed N] [--case model]
    python tests/fuzz_readers.py --minutes 15 --coverage --case model     guided by coverage, with `pip install atheris`

Prints what it found with the seed that repeats it, and how many folders were read. Ends with status 1 if anything was found: an
error of another kind, a message that is long or not to be printed, more than 10 s, or 300 MB more than before.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LONGEST_S, MOST_KIB = 10, 300 << 10
#: How often a case has its turn: those that cost an engine or a process each, less often.
TURNS = {"model": 6, "shards": 6, "checkpoint": 1, "checksums": 3, "run": 6, "tokens": 3, "tokenizer": 1,
         "tokenizer of GPT-2": 1, "documents": 6}  # fmt: skip


class Slow(BaseException):
    """No reader catches it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first; each folder has the next")
    parser.add_argument("--case", action="append", choices=list(TURNS), help="only this; may be repeated")
    parser.add_argument("--coverage", action="store_true", help="let Atheris choose the damage, for one --case")
    options = parser.parse_args()
    if options.coverage:
        return by_coverage((options.case or ["model"])[0], options.minutes)
    signal.signal(signal.SIGALRM, _too_slow)
    return by_chance(options.case or list(TURNS), options.seed, options.minutes)


def by_chance(chosen: list[str], seed: int, minutes: float) -> int:
    """Cases in turn, each folder damaged as its seed says."""
    from tests.damage import cases, check, damaged

    tried, refused, found = Counter[str](), Counter[str](), 0
    for name in chosen:
        check(cases()[name], "", b"")  # what is loaded once is not the damage's
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    turns = [name for name in chosen for _ in range(TURNS[name])]
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        name, random = turns[seed % len(turns)], Random(seed)
        case = cases()[name]
        file = random.choice(sorted(case.files))
        content = damaged(random, file, case.files[file])
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
        try:
            refused[name] += check(case, file, content) is not None
        except KeyboardInterrupt:
            break
        except BaseException as error:
            found += 1
            print(f"FOUND --seed {seed} --case {name}: {file}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        tried[name] += 1
        seed += 1
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    for name in chosen:
        print(f"{name}: {tried[name]} folders, {refused[name]} refused")
    print(f"{tried.total()} folders, next seed {seed}, {found} found, {more >> 10} MiB more at most")
    return int(found > 0 or more > MOST_KIB)


def _too_slow(*_: object) -> None:
    raise Slow(f"more than {LONGEST_S} s")


def by_coverage(name: str, minutes: float) -> int:
    """One case: Atheris makes the bytes of a file, the first says of which. Ends the process at what it finds."""
    import atheris

    # Numba cannot compile what was instrumented.
    kernels = [f"asynctile.kernels.cpu.{path.stem}" for path in (ROOT / "asynctile/kernels/cpu").glob("*.py")]
    with atheris.instrument_imports(include=["asynctile"], exclude=kernels):
        from tests.damage import cases, check
    case = cases()[name]
    files = sorted(case.files)

    def one(data: bytes) -> None:
        check(case, files[data[0] % len(files)] if data else files[0], data[1:])

    with tempfile.TemporaryDirectory() as corpus:
        for n, file in enumerate(files):
            Path(corpus, file).write_bytes(bytes([n]) + case.files[file])
        limits = [f"-max_total_time={round(60 * minutes)}", f"-timeout={LONGEST_S}", "-max_len=8192", "-rss_limit_mb=2048"]
        atheris.Setup([sys.argv[0], *limits, corpus], one)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
