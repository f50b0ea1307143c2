"""Let Atheris damage the files of one reader, guided by coverage, until it fails in another way than by one short sentence.

    pip install atheris
    python tests/fuzz_readers.py --minutes 15 --case model

Ends the process at what it finds: an error of another kind, a message that is long or not to be printed, more than 10 s, or
more than 2 GB. Damage that knows the formats: `asynctile stress --scenario inputs`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LONGEST_S = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--case", default="model", help="a name in cases() of tests/damage.py")
    options = parser.parse_args()
    fuzz(options.case, options.minutes)


def fuzz(name: str, minutes: float) -> None:
    """Atheris makes the bytes of a file, of which the first says which file."""
    import atheris

    # Numba cannot compile what was instrumented.
    kernels = [f"asynctile.kernels.cpu.{path.stem}" for path in (ROOT / "asynctile/kernels/cpu").glob("*.py")]
    with atheris.instrument_imports(include=["asynctile"], exclude=kernels):
        from tests.damage import cases, check, holding
    case = cases()[name]
    files = sorted(case.files)

    def one(data: bytes) -> None:
        check(case, holding(files[data[0] % len(files)] if data else files[0], data[1:]))

    with tempfile.TemporaryDirectory() as corpus:
        for n, file in enumerate(files):
            Path(corpus, file).write_bytes(bytes([n]) + case.files[file])
        limits = [f"-max_total_time={round(60 * minutes)}", f"-timeout={LONGEST_S}", "-max_len=8192", "-rss_limit_mb=2048"]
        atheris.Setup([sys.argv[0], *limits, corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
