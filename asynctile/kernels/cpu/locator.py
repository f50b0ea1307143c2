"""Where machine code is kept: in the user's cache, so that every environment with the same sources shares it.

Numba by itself keeps it beside the sources, of which each environment has its own. `keep` puts another place before that one: a
folder of the user's cache whose name follows from all that machine code does. NUMBA_CACHE_DIR comes before both.
"""

from __future__ import annotations

import hashlib
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any, Self

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from asynctile.storage.private import drop_unused, private_folder, user_cache

#: The folder in the user's cache, and what the folders in it are called.
NAME, KEY = "asynctile", re.compile(r"kernels-[0-9a-f]{32}")


def keep(dispatcher: Any) -> None:
    """Keep its machine code on disk, where a folder for it can be written; if none can, it is compiled every time."""
    try:
        dispatcher._cache = _Cache(dispatcher.py_func)
    except RuntimeError:
        return
    # Numba watches the function's own file only; it is also made of pieces from its neighbours.
    dispatcher._cache._cache_file._source_stamp = _stamp(Path(dispatcher.py_func.__code__.co_filename).parent)


def drop_old() -> None:
    """Remove what the user's cache has of kernels that nobody has loaded for long."""
    parent = user_cache()
    if parent is not None:
        drop_unused(parent / NAME, KEY)


@cache
def _stamp(folder: Path) -> bytes:
    """A digest of all that a function in this folder may be made of; empty where sources cannot be read."""
    try:
        paths = [path for source in (Path(__file__).parent, folder) for path in sorted(source.glob("*.py"))]
        sources = [(path.name, path.read_bytes()) for path in paths]
    except OSError:
        return b""
    return hashlib.sha256(repr(sources).encode()).digest() if sources else b""


@cache
def _folder(sources: bytes) -> Path | None:
    """That of functions of these sources, compiled by these libraries for this processor."""
    parent = user_cache()
    if parent is None or not sources:
        return None
    made_by = numba.__version__, llvmlite.__version__, platform.python_implementation(), platform.python_version()
    processor = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    key = repr((sources, made_by, processor))
    return private_folder(parent, NAME, f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:32]}")


class _Locator:
    """What Numba asks where it keeps a function."""

    def __init__(self, py_func: Any, py_file: str, folder: Path) -> None:
        self._py_file = py_file
        self._line = py_func.__code__.co_firstlineno
        self._folder = folder

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        folder = _folder(_stamp(Path(py_file).parent))
        return None if folder is None else cls(py_func, py_file, folder)

    def ensure_cache_path(self) -> None:
        """Called before each write: somebody may have removed it."""
        private_folder(self._folder.parents[1], NAME, self._folder.name)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> None:
        """`keep` gives it, for whichever place was found."""

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Impl(CompileResultCacheImpl):
    # The first of Numba's own is that of NUMBA_CACHE_DIR.
    _locator_classes: list[Any] = [  # noqa: RUF012  (Numba declares it so)
        *CompileResultCacheImpl._locator_classes[:1], _Locator, *CompileResultCacheImpl._locator_classes[1:],
    ]  # fmt: skip


class _Cache(FunctionCache):
    _impl_class = _Impl
