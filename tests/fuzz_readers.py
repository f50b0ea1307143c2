"""Let Atheris damage one reader's files, guided by coverage, until the reader fails with more than one short sentence.

    pip install atheris
    python tests/fuzz_readers.py --minutes 15 --case model

The process ends at the first finding: an exception of another kind, a message that is too long or not printable, more than 10
s, or more than 2 GB. For damage that knows the formats, see `asynctile stress --scenario inputs`.
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
    """Let Atheris make the bytes of a file; their first byte chooses the file."""
    import atheris

    # Numba cannot compile instrumented functions.
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
