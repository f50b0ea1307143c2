"""Machine code of the CUDA kernels: compiled once for each GPU, source and compiler, cached, and rebuilt if damaged.

Uses NVIDIA's compiler where its package is installed, here for a kernel of one line. tests/kernels/cuda/test_compile.py
compiles all kernels.
"""

from collections import Counter
from types import SimpleNamespace

import pytest

from asynctile.device import nvrtc as compiled
from asynctile.device.nvrtc import compile_source, machine_code, target
from asynctile.kernels.cuda import options
from tests.cuda import nvrtc

SOURCE = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }'
HOPPER, AMPERE = (9, 0), (8, 0)


class Compiler(SimpleNamespace):
    """A binding of NVRTC that turns any source into its options as text, and counts its compiles."""

    NVRTCError = RuntimeError

    def __init__(self, version=(13, 0), known=(75, 80, 90)):
        super().__init__(version=version, known=known, calls=Counter())

    def getVersion(self):
        return self.version

    def getSupportedArchs(self):
        return self.known

    def createProgram(self, source, name, headers, include_names):
        self.calls["made"] += 1
        return self.calls["made"]

    def compileProgram(self, program, options):
        self.told = options

    def getCUBIN(self, program):
        return f"{' '.join(self.told)} by {self.version}".encode()

    def getPTX(self, program):
        return b"PTX of " + self.getCUBIN(program)

    def getProgramLog(self, program):
        return ""

    def destroyProgram(self, program):
        self.calls["destroyed"] += 1


def test_compiled_code_is_read_again_and_another_source_gpu_or_compiler_is_compiled(tmp_path):
    compiler = Compiler()
    first = machine_code(compiler, SOURCE, HOPPER, tmp_path)
    assert first == b"--std=c++17 --ftz=false --prec-div=true --prec-sqrt=true --gpu-architecture=sm_90 by (13, 0)"
    assert machine_code(compiler, SOURCE, HOPPER, tmp_path) == first
    assert compiler.calls == {"made": 1, "destroyed": 1}
    for source, gpu, version in ((SOURCE + " ", HOPPER, (13, 0)), (SOURCE, AMPERE, (13, 0)), (SOURCE, HOPPER, (13, 1))):
        compiler.version = version
        machine_code(compiler, source, gpu, tmp_path)
    assert compiler.calls["made"] == 4
    assert len(list((tmp_path / "cubins").iterdir())) == 4


def test_damaged_machine_code_is_never_used_but_compiled_anew(tmp_path):
    compiler = Compiler()
    first = machine_code(compiler, SOURCE, HOPPER, tmp_path)
    (path,) = (tmp_path / "cubins").iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + b"x", b"x" + whole[1:]):
        path.write_bytes(damaged)
        assert machine_code(compiler, SOURCE, HOPPER, tmp_path) == first
        assert path.read_bytes() == whole
    assert compiler.calls["made"] == 5


def test_kernels_are_compiled_each_time_where_no_folder_can_be_written(monkeypatch):
    monkeypatch.setattr(compiled, "cache_folder", lambda: None)
    compiler = Compiler()
    assert machine_code(compiler, SOURCE, HOPPER) == machine_code(compiler, SOURCE, HOPPER)
    assert compiler.calls["made"] == 2


def test_machine_code_is_kept_beside_that_of_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "cache_folder", lambda: tmp_path)
    machine_code(Compiler(), SOURCE, HOPPER)
    assert len(list((tmp_path / "cubins").glob("*.cubin"))) == 1


def test_a_gpu_that_is_too_new_for_the_compiler_gets_ptx_and_one_too_old_an_error(tmp_path):
    compiler = Compiler()
    assert [target(compiler, gpu) for gpu in (HOPPER, (12, 0), (8, 6))] == ["sm_90", "compute_90", "compute_80"]
    assert machine_code(compiler, SOURCE, (12, 0), tmp_path).startswith(b"PTX of --std")
    with pytest.raises(ValueError, match=r"^NVRTC 13\.0 has no code for compute capability 7\.0$"):
        machine_code(compiler, SOURCE, (7, 0), tmp_path)


needs_nvrtc = pytest.mark.skipif(not nvrtc.installed(), reason="needs the package nvidia-cuda-nvrtc")


@needs_nvrtc
def test_nvidias_compiler_makes_an_elf_file_and_a_refused_source_leaves_no_program(tmp_path):
    assert machine_code(nvrtc, SOURCE, HOPPER, tmp_path).startswith(b"\x7fELF")
    assert compile_source(nvrtc, SOURCE, options("compute_90"))[0].startswith(b"//")
    destroyed = []
    library = SimpleNamespace(**vars(nvrtc) | {"destroyProgram": destroyed.append})
    with pytest.raises(RuntimeError, match=r"error: .*nowhere"):
        compile_source(library, "__device__ int x = nowhere;", options("sm_90"))
    assert len(destroyed) == 1


@needs_nvrtc
def test_cupys_binding_gives_the_same_machine_code(tmp_path):
    """Only where CuPy is installed. It leaves out the last byte, a zero, which Python adds behind bytes anyway."""
    cupys = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    found, expected = (machine_code(library, SOURCE, HOPPER, tmp_path / library.__name__) for library in (cupys, nvrtc))
    assert found.rstrip(b"\0") == expected.rstrip(b"\0")
    with pytest.raises(RuntimeError, match=r"error: .*nowhere"):
        compile_source(cupys, "__device__ int x = nowhere;", options("sm_90"))
