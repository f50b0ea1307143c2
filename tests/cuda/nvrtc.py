"""NVIDIA's run-time compiler from the package nvidia-cuda-nvrtc, which needs neither a driver nor a GPU.

It uses ctypes, with the names of CuPy's binding (cupy_backends.cuda.libs.nvrtc): asynctile/device/nvrtc.py takes either.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from importlib import metadata
from typing import Any


class NVRTCError(RuntimeError):
    pass


def installed() -> bool:
    try:
        return bool(metadata.files("nvidia-cuda-nvrtc"))
    except metadata.PackageNotFoundError:
        return False


@functools.cache
def _library() -> Any:
    files = metadata.files("nvidia-cuda-nvrtc") or []
    for name in ("libnvrtc-builtins.so", "libnvrtc.so"):  # NVRTC 13.0 finds its builtins only if they are loaded
        library = ctypes.CDLL(str(next(path.locate() for path in files if path.name.startswith(name))))
    return library


def _check(code: int) -> None:
    if code:
        message = _library().nvrtcGetErrorString
        message.restype = ctypes.c_char_p
        raise NVRTCError(f"NVRTC: {message(code).decode()}")


def getVersion() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def getSupportedArchs() -> tuple[int, ...]:
    """Return the compute capabilities that it compiles for, ascending; 7.5 is 75."""
    count = ctypes.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    found = (ctypes.c_int * count.value)()
    _check(_library().nvrtcGetSupportedArchs(found))
    return tuple(sorted(found))


def createProgram(source: str, name: str, headers: Sequence[str], include_names: Sequence[str]) -> int:
    assert not headers and not include_names
    program = ctypes.c_void_p()
    _check(_library().nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    assert program.value is not None
    return program.value


def compileProgram(program: int, options: Sequence[str]) -> None:
    texts = [option.encode() for option in options]
    _check(_library().nvrtcCompileProgram(ctypes.c_void_p(program), len(texts), (ctypes.c_char_p * len(texts))(*texts)))


def getCUBIN(program: int) -> bytes:
    return _read(program, "CUBIN")


def getPTX(program: int) -> bytes:
    return _read(program, "PTX")


def getProgramLog(program: int) -> str:
    return _read(program, "ProgramLog").rstrip(b"\0").decode()


def destroyProgram(program: int) -> None:
    _check(_library().nvrtcDestroyProgram(ctypes.byref(ctypes.c_void_p(program))))


def _read(program: int, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(_library(), f"nvrtcGet{what}Size")(ctypes.c_void_p(program), ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(_library(), f"nvrtcGet{what}")(ctypes.c_void_p(program), text))
    return text.raw
