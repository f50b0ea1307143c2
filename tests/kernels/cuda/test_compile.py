"""NVIDIA's compiler accepts every kernel for every GPU that it knows, without a warning, and flushes no subnormal number.

The options are those that a GPU's driver is given. tests/device/test_nvrtc.py tests the cache of the results.
"""

import functools
import hashlib
import json
import os
import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from asynctile.device.cupy_driver import KERNEL
from asynctile.device.nvrtc import compile_source
from asynctile.kernels.cuda import options, source
from tests.alone import alone
from tests.cuda import nvrtc

pytestmark = pytest.mark.skipif(not nvrtc.installed(), reason="needs the package nvidia-cuda-nvrtc")


@functools.cache
def report(capability):
    """Return the compiler's messages about all kernels, with its remarks on each, and the PTX of each.

    Compiling takes 15 s, so these tests are laws. The report is kept on disk, under all that it depends on, for other workers
    and later runs.
    """
    text, words = source(), (*options(f"sm_{capability}"), "--ptxas-options=-v")
    key = hashlib.sha256(repr((text, words, nvrtc.getVersion(), metadata.version("nvidia-cuda-nvrtc"))).encode())
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "asynctile" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key.hexdigest()[:32]}.json"
    with alone(folder / f"compiling-{capability}"):
        if not path.exists():
            made = path.with_suffix(".new")
            made.write_text(json.dumps(compiled(text, words)))
            made.replace(path)
    log, ptx = json.loads(path.read_text())
    return log, ptx


def compiled(text, words):
    ptx = []

    def both(program):
        ptx.append(nvrtc.getPTX(program).decode())
        return nvrtc.getCUBIN(program)

    library = SimpleNamespace(**vars(nvrtc) | {"getCUBIN": both})
    _, log = compile_source(library, text, words)
    return log, dict(re.findall(r"\.entry (\w+)\((.*?)\n}", ptx[0], re.DOTALL))


@pytest.mark.laws
@pytest.mark.parametrize("which", ["oldest", "80", "90", "newest"])
def test_every_kernel_compiles_without_a_warning(which):
    known = nvrtc.getSupportedArchs()
    capability = {"oldest": known[0], "newest": known[-1]}.get(which) or int(which)
    log, _ = report(capability)
    assert [line for line in log.splitlines() if line and not re.match("ptxas (info)? +[.:]", line)] == []
    names = set(KERNEL.findall(source()))
    if capability < 80:  # tensor cores do not know bf16
        names = {name for name in names if "_mma_" not in name}
    assert set(re.findall(r"Compiling entry function '(\w+)'", log)) == names


@pytest.mark.laws
def test_no_kernel_spills_registers():
    found = re.findall(r"Function properties for (\w+)\n.*, (\d+) bytes spill stores", report(90)[0])
    # The power of rope.cu is a function that kernels call.
    assert {name for name, _ in found} - {"__internal_accurate_pow"} == set(KERNEL.findall(source()))
    assert [name for name, spilled in found if int(spilled)] == []


@pytest.mark.laws
def test_only_the_exponential_flushes_subnormal_numbers():
    """The exponential is the GPU's own instruction, which has no other form."""
    ptx = report(90)[1]
    assert ptx.keys() == set(KERNEL.findall(source()))
    flushing = {name: set(re.findall(r"\S*\.ftz\S*", body)) for name, body in ptx.items() if ".ftz" in body}
    assert set().union(*flushing.values()) == {"ex2.approx.ftz.f32"}
    exact = (
        "adamw", "add", "sum_squares", "layernorm", "rmsnorm", "gemm", "bias", "copy", "fill", "column_sums", "embed", "rope",
        "scale",
    )  # fmt: skip
    assert [name for name in flushing if name.startswith(exact)] == []


def test_a_refused_source_is_an_error_with_its_line():
    with pytest.raises(RuntimeError, match=r"kernels.cu\(1\): error: .*nowhere"):
        compile_source(nvrtc, "__device__ int x = nowhere;", options("sm_90"))
