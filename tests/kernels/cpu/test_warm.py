"""Signatures, the disk cache across processes, and exp."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import asynctile.ops as ops
from asynctile.execute.workers import worker
from asynctile.kernels import cpu
from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import FUSE, LOOPS, SIGNATURES
from tests.verbs import VERBS

ROOT = Path(__file__).resolve().parents[3]
#: Suffixes of a product's kernel name for operands that may join the product.
MORE = ("bias", "onto", "bias_onto")
#: Kernels of the verbs of attention for packed rows.
PACKED = ("attention_packed", "attention_packed_backward")
#: Makes two kernels ready, in a process that has compiled nothing, and prints the reports and which process compiled.
PROCESS = """
import numpy as np
from asynctile.kernels import cpu
names = []
assert cpu.warm(lambda *report: names.append(report), ["fill", "copy"])
x = np.empty((3, 2), np.float32)
cpu.KERNELS["copy"](np.full((3, 2), 3, np.float32), x)
assert (x == 3).all()
print(names, sum(sum(function.stats.cache_misses.values()) for function in cpu.KERNELS.values()))
"""


#: A module with a loop, in a folder that knows nothing of this package.
LOOP = """
from numba import types
from asynctile.kernels.cpu.jit import loop

@loop((types.int64,))
def again(n):
    return n + 1
"""
LOOPED = """
import room
from asynctile.kernels import cpu
names = []
assert cpu.warm(lambda *report: names.append(report), ["room.again"])
print(names, sum(room.again.stats.cache_misses.values()), room.again(6))
"""


def test_every_verb_has_a_kernel():
    products = (f"{verb}_{more}" for verb in ("gemm", "gemm_rows") for more in MORE)
    assert set(cpu.KERNELS) == {*ops.__all__, *PACKED, *products}


def test_every_kernel_has_a_second_version_in_numpy():
    assert set(VERBS) == set(cpu.KERNELS)


def test_a_child_compiles_missing_kernels_and_later_processes_load_them(tmp_path):
    (tmp_path / "numba.py").write_text("raise RuntimeError('a file that happens to lie here was run')")
    folders = {"NUMBA_CACHE_DIR": str(tmp_path / "named"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = os.environ | folders | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", PROCESS]
    told = [
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()
        for _ in range(2)
    ]
    assert told == ["[('fill', 0, 2), ('copy', 1, 2)] 0", "[] 0"]
    assert list((tmp_path / "named").rglob("*.nbi")) and not list((tmp_path / "cache").rglob("*.nbi")), "where it was named"


@pytest.mark.laws
def test_a_loop_of_another_module_is_compiled_apart_and_kept_like_a_kernel(tmp_path):
    (tmp_path / "room.py").write_text(LOOP)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-P", "-c", LOOPED]
    told = [
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()
        for _ in range(2)
    ]
    assert told == ["[('room.again', 0, 1)] 0 7", "[] 0 7"]
    neighbour = tmp_path / "neighbour.py"  # a loop may use code from the files beside it
    neighbour.write_text("")
    told = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()
    assert told == "[('room.again', 0, 1)] 0 7"


@pytest.fixture
def environments(tmp_path):
    """Return a function that runs one of two copies of the package.

    They stand for two environments that share the user's cache, the folder `cache`.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("one", "two"):
        for folder in ("asynctile", "layers", "storage"):
            shutil.copytree(ROOT / folder, tmp_path / name / folder, symlinks=True, ignore=ignored)
        (tmp_path / name / "asynctile/kernels/cpu/jit.py").touch()  # another modification time
    without = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}

    def ask(name):
        environment = without | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path / name)}
        command = [sys.executable, "-P", "-c", PROCESS]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    return ask


@pytest.mark.laws
def test_another_environment_with_the_same_sources_has_nothing_to_compile(environments, tmp_path):
    compiled = "[('fill', 0, 2), ('copy', 1, 2)] 0"
    assert [environments("one"), environments("two")] == [compiled, "[] 0"]
    (kept,) = (tmp_path / "cache/asynctile").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.glob("*/asynctile/kernels/cpu/__pycache__/*.nbi"))
    with (tmp_path / "two/asynctile/kernels/cpu/exp.py").open("a") as file:
        file.write("#")
    assert [environments("two"), environments("one")] == [compiled, "[] 0"]


@pytest.mark.laws
def test_kernels_are_kept_beside_the_sources_if_others_can_write_the_cache(environments, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    environments("one")
    assert list((tmp_path / "one/asynctile/kernels/cpu/__pycache__").glob("*.nbi")) and not list((tmp_path / "cache").iterdir())


def test_all_kernels_and_imported_loops_are_made_ready(monkeypatch):
    ready = []
    monkeypatch.setattr(cpu, "is_ready", lambda name: True)
    monkeypatch.setattr(cpu, "prepare", ready.append)
    assert cpu.warm()
    assert ready == [*cpu.KERNELS, *LOOPS] and f"{worker.__name__}.work" in ready


def test_without_a_writable_cache_this_process_compiles(monkeypatch):
    monkeypatch.setattr(cpu, "has_cache", lambda name: False)
    monkeypatch.setattr(cpu, "is_ready", lambda name: name == "gelu")
    monkeypatch.setattr(cpu, "compile_apart", lambda *_: pytest.fail("a child was started, which has nowhere to put kernels"))
    told = []
    assert cpu.warm(lambda *report: told.append(report), ["gelu", "fill", "column_sums"])
    assert told == [("fill", 1, 3), ("column_sums", 2, 3)]
    stop = threading.Event()
    assert not cpu.warm(lambda *report: stop.set(), ["fill", "gelu"], stop)


def test_calls_use_the_compiled_signatures():
    cpu.warm()
    function = cpu.KERNELS["column_sums"]
    function(np.zeros((4, 5), np.float32), np.zeros(5, np.float32), True)
    cpu.KERNELS["fill"](np.zeros(5, np.float32), 1.0)
    for name, dispatcher in cpu.KERNELS.items():
        assert len(dispatcher.signatures) == len(SIGNATURES[name]), name


@njit(error_model="numpy", fastmath=FUSE)
def exp_of(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


def test_exp_is_accurate():
    x = np.linspace(-87.3, 88.72, 1_000_001, dtype=np.float32)
    y, expected = np.empty_like(x), np.exp(x.astype(np.float64))
    exp_of(x, y)
    assert (np.abs(y - expected) / np.spacing(expected.astype(np.float32))).max() < 2.0


@pytest.mark.parametrize("count", [1, 100])
def test_exp_at_the_ends(count):
    ends = {-np.inf: 0, -1e30: 0, -88.0: 0, 0.0: 1, 88.8: np.inf, 1e30: np.inf, np.inf: np.inf, np.nan: np.nan}
    for value, expected in ends.items():
        x, y = np.full(count, value, np.float32), np.empty(count, np.float32)
        exp_of(x, y)
        np.testing.assert_array_equal(y, np.full(count, expected, np.float32))
