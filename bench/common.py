"""The shared part of the benchmarks: a clean environment, repeats that alternate, tables, and the record of a run.

Importing this file may restart the program (clean_environment.py). Only --write writes results, and they contain no path of the
machine.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clean_environment  # noqa: F401
import numpy as np
import scipy.linalg.blas
import threadpoolctl

from asynctile import __version__
from asynctile.kernels.cpu.jit import KERNELS
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.config import Config
from asynctile.layers.layout import shapes
from asynctile.layers.model import Model, model_state_of
from asynctile.layers.rows import Rows
from asynctile.program.program import Program

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
LIBRARIES = ("asynctile", "numpy", "scipy", "numba", "uvloop", "threadpoolctl", "torch", "transformers")
CORES = len(os.sched_getaffinity(0))

#: One side of a comparison: each call measures once.
Side = Callable[[], Awaitable[float]]


def library(name: str) -> Any:
    """Import a library that only comparisons need. If it is missing, end the benchmark with one line that says so."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        sys.exit(f"{Path(sys.argv[0]).name} compares with {name}, which is not installed; pip install '.[reference]'")


@dataclass
class Table:
    """Rows under columns.

    Floats of 1000 and more are printed whole, others with four significant digits or, below 1, with three decimals.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)

    def cells(self) -> list[list[str]]:
        return [list(self.columns), *([show(value) for value in row] for row in self.rows)]

    def text(self) -> str:
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in cells
        ]  # fmt: skip
        return "\n".join([self.title, *(f"  {line}" for line in lines)])

    def markdown(self) -> str:
        cells = self.cells()
        rule = ["---", *("---:" for _ in self.columns[1:])]
        return "\n".join([f"### {self.title}", "", *(f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:]))])


def show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def target(value: float, bound: float, *, above: bool = True) -> str:
    """Return the target next to a number, such as 'at least 0.65: met'."""
    met = value >= bound if above else value <= bound
    return f"at {'least' if above else 'most'} {bound:g}: {'met' if met else 'MISSED'}"


def arguments(text: str | None, against: Mapping[str, Any] | None = None, **options: Any) -> argparse.Namespace:
    """Parse the options of a benchmark: one for each keyword, of the type of its default, and --write.

    against: for a benchmark with --against (bench/against.py), the default of --starts and other defaults that apply with it.
    """
    parser = argparse.ArgumentParser(description=(text or "").strip(), formatter_class=argparse.RawTextHelpFormatter)
    for name, default in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=list(default))
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"default {default}")
    parser.add_argument("--write", action="store_true", help="write bench/results/<name>.json and .md")
    if against is not None:
        parser.add_argument("--against", type=Path, metavar="TREE", help="a checkout of another commit to compare with")
        parser.add_argument("--starts", type=int, help=f"with --against: pairs of processes; default {against['starts']}")
        if parser.parse_known_args()[0].against:
            parser.set_defaults(**against)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Return CPU, cores, load, BLAS core types and versions, which a reader needs to judge the numbers."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        found = {key.strip(): value.strip() for key, value in lines.items()}
        cpu = f"{found.get('model name', cpu)} (family {found.get('cpu family')}, model {found.get('model')})"
    except OSError:
        pass
    blas = sorted({
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip()
        for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"
    })  # fmt: skip
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        if library in sys.modules:  # asynctile need not be installed
            versions[library] = __version__ if library == "asynctile" else importlib.metadata.version(library)
    return {"cpu": cpu, "cores": CORES, "load": os.getloadavg()[0], "blas": blas, "versions": versions}


def commit(tree: Path = ROOT) -> str:
    """Return the commit that is measured, from git, or from the variable COMMIT where the sources have no git history."""
    try:
        found, changed = (
            subprocess.run(["git", *command], cwd=tree, capture_output=True, text=True, timeout=20, check=True).stdout
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("COMMIT", "unknown") if tree == ROOT else "unknown"
    own = [line for line in changed.splitlines() if "bench/results/" not in line]
    return f"{found.strip()} with uncommitted changes" if own else found.strip()


def publish(
    name: str, text: str | None, configuration: Mapping[str, Any], tables: Iterable[Table], *, write: bool
) -> None:
    """Print the tables; with `write`, save them as bench/results/<name>.json and .md."""
    tables, where = list(tables), machine()
    lines = [f"{key}: {value}" for key, value in {**configuration, **where}.items()]
    print("\n".join(lines), "\n\n", "\n\n".join(table.text() for table in tables), sep="")
    if not write:
        return
    RESULTS.mkdir(exist_ok=True)
    content = {
        "name": name,
        "configuration": dict(configuration),
        "machine": where,
        "tables": [{"title": table.title, "columns": list(table.columns), "rows": table.rows} for table in tables],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    body = [f"# {name}", (text or "").strip(), "\n".join(f"- {line}" for line in lines)]
    body += [table.markdown() for table in tables]
    (RESULTS / f"{name}.md").write_text("\n\n".join(body) + "\n", encoding="utf-8")


async def alternate(sides: Mapping[str, Side], rounds: int) -> dict[str, float]:
    """Return the median of each side over the rounds of `in_turn`."""
    return {name: statistics.median(items) for name, items in (await in_turn(sides, rounds)).items()}


async def in_turn(sides: Mapping[str, Side], rounds: int, *, backwards: bool = False) -> dict[str, list[float]]:
    """Return the values of each side. All sides run in turn in every round, so that they meet the same state of the machine.

    Every second round runs backwards; with `backwards`, the first one does.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in reversed(list(sides)) if (turn % 2 == 0) == backwards else list(sides):
            values[name].append(await sides[name]())
        print(f"round {turn + 1} of {rounds}: " + ", ".join(f"{n} {show(v[-1])}" for n, v in values.items()),
              file=sys.stderr, flush=True)  # fmt: skip
    return values


def batch(config: Config, size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random tokens and targets (B, T)."""
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (size, length + 1)).astype(np.int32)
    return ids[:, :-1].copy(), ids[:, 1:].copy()


async def trainer_on(engine: Any, config: Config, *, tile: int | None = None, recompute: bool = True) -> Trainer:
    kind = GPT2 if isinstance(config, GPT2Config) else Model
    model = await kind.create(engine, config, seed=1, tile=tile)
    return Trainer(model, AdamW(lr=1e-4), recompute=recompute)


async def program_of(trainer: Trainer, batch: int, length: int) -> Program:
    """Return the step's program as it ran on such batches, with the updates where the trainer has placed them."""
    rows = model_state_of(trainer.model).tiling.rows(batch, length, trainer.micro_batches, trainer.replicas)

    async def placed(rows: Rows, kept: int) -> Program:
        return await trainer._placing.recorded("step", rows, kept, await trainer._placing.on_host("step", rows, kept))

    return await trainer._keeping.run("step", rows, trainer.update, placed)


def steps(trainer: Trainer, tokens: Any, targets: Any, count: int) -> Side:
    """Return a side for `alternate` that measures seconds per step, over `count` steps."""

    async def side() -> float:
        return sum([(await trainer.step(tokens, targets)).step_s for _ in range(count)]) / count

    return side


def rate_side(measure: Callable[[], float]) -> Side:
    """Return a side for `alternate` from a function that measures once."""

    async def side() -> float:
        return measure()

    return side


def step_flops(config: Config, tokens: int, length: int) -> int:
    """Return the FLOPs of the matrix products of a step without recomputation, attention counted in full."""
    vectors = sum(shape[0] for _, shape in shapes(config) if len(shape) == 1)
    return tokens * (config.flops_per_token(length) - 6 * vectors)


def library_gemm_gflops(n: int = 4096) -> float:
    """Return the GFLOP/s of one large square product by our BLAS on all cores, without the limit that an open engine sets."""
    a = np.asfortranarray(np.random.default_rng(1).standard_normal((n, n), np.float32))
    c = np.empty((n, n), np.float32, order="F")
    with threadpoolctl.threadpool_limits(CORES, user_api="blas"):
        scipy.linalg.blas.sgemm(1.0, a, a, c=c, overwrite_c=True)
        start = time.perf_counter()
        scipy.linalg.blas.sgemm(1.0, a, a, c=c, overwrite_c=True)
        return 2e-9 * n**3 / (time.perf_counter() - start)


def tile_gemm_gflops(shape: tuple[int, int, int] = (512, 768, 768), seconds: float = 0.5) -> float:
    """Return the GFLOP/s of products (R, K, N) of tiles on one thread per core at once, by the kernel that operations run."""
    rows, inner, columns = shape
    gemm, once = KERNELS["gemm"], 2e-9 * rows * inner * columns
    rate = [0.0] * CORES
    barrier = threading.Barrier(CORES)

    def work(worker: int) -> None:
        rng = np.random.default_rng(worker)
        a = [rng.standard_normal((rows, inner), np.float32) for _ in range(4)]
        b = [rng.standard_normal((inner, columns), np.float32) for _ in range(4)]
        c = [np.zeros((rows, columns), np.float32) for _ in range(4)]
        gemm(a[0], b[0], c[0], False, False, False)
        barrier.wait()
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            gemm(a[count % 4], b[count % 4], c[count % 4], False, False, False)
            count += 1
        rate[worker] = count * once / (time.perf_counter() - start)

    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(CORES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(rate)
