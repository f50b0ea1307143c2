"""NVIDIA's run-time compiler by ctypes, from the package nvidia-cuda-nvrtc: it needs neither a driver nor a GPU."""

from __future__ import annotations

import ctypes
import functools
from importlib import metadata
from typing import Any


def installed() -> bool:
    try:
        return bool(metadata.files("nvidia-cuda-nvrtc"))
    except metadata.PackageNotFoundError:
        return False


@functools.cache
def nvrtc() -> Any:
    """The library."""
    files = metadata.files("nvidia-cuda-nvrtc") or []
    return ctypes.CDLL(str(next(path.locate() for path in files if path.name.startswith("libnvrtc.so"))))


def _check(code: int) -> None:
    if code:
        message = nvrtc().nvrtcGetErrorString
        message.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {message(code).decode()}")


def architectures() -> list[int]:
    """The compute capabilities that it compiles for, as 75 for 7.5, ascending."""
    count = ctypes.c_int()
    _check(nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    found = (ctypes.c_int * count.value)()
    _check(nvrtc().nvrtcGetSupportedArchs(found))
    return sorted(found)


def compile_cubin(source: str, *options: str) -> tuple[bytes, str]:
    """Machine code of a CUDA C++ source, and what the compiler said. Raises RuntimeError with that if it refused."""
    program = ctypes.c_void_p()
    _check(nvrtc().nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        texts = [option.encode() for option in options]
        code = nvrtc().nvrtcCompileProgram(program, len(texts), (ctypes.c_char_p * len(texts))(*texts))
        log = _read(program, "ProgramLog").rstrip(b"\0").decode()
        if code:
            raise RuntimeError(f"NVRTC refused the kernels:\n{log}")
        return _read(program, "CUBIN"), log
    finally:
        nvrtc().nvrtcDestroyProgram(ctypes.byref(program))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc(), f"nvrtcGet{what}")(program, text))
    return text.raw
