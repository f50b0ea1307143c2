"""NVIDIA's compiler takes every kernel, from the oldest GPU that it knows to the newest, and warns of none."""

import functools
import re

import pytest

from asynctile.kernels.cuda import source
from tests.cuda.build import SIGNATURE
from tests.cuda.nvrtc import architectures, compile_cubin, installed
from tests.laws import law

pytestmark = pytest.mark.skipif(not installed(), reason="needs the package nvidia-cuda-nvrtc")


@functools.cache
def report(capability):
    """What the compiler says of all kernels, with its remarks on each."""
    return compile_cubin(source(), f"--gpu-architecture=sm_{capability}", "--std=c++17", "--ptxas-options=-v")[1]


@pytest.mark.parametrize("which", ["oldest", law("80"), "90", law("newest")])
def test_every_kernel_compiles_without_a_warning(which):
    known = architectures()
    capability = {"oldest": known[0], "newest": known[-1]}.get(which) or int(which)
    log = report(capability)
    assert [line for line in log.splitlines() if line and not re.match("ptxas (info)? +[.:]", line)] == []
    names = {name for name, _ in SIGNATURE.findall(source())}
    if capability < 80:  # tensor cores do not know bf16
        names = {name for name in names if "_mma_" not in name}
    assert set(re.findall(r"Compiling entry function '(\w+)'", log)) == names


def test_no_kernel_spills_registers():
    found = re.findall(r"Function properties for (\w+)\n.*, (\d+) bytes spill stores", report(90))
    assert {name for name, _ in found} == {name for name, _ in SIGNATURE.findall(source())}
    assert [name for name, spilled in found if int(spilled)] == []


def test_a_refused_source_is_an_error_that_says_where():
    with pytest.raises(RuntimeError, match=r"kernels.cu\(1\): error: .*nowhere"):
        compile_cubin("int x = nowhere;", "--std=c++17")
