"""The folder of compiled kernels: in the user's cache, so that all environments with the same sources share it.

By default Numba stores machine code next to the sources, and each environment has its own. `keep` tries another place first: a
folder of the user's cache whose name is a digest of everything the machine code depends on. NUMBA_CACHE_DIR wins over both.
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

#: The folder in the user's cache, and the names of the folders in it.
NAME, KEY = "asynctile", re.compile(r"kernels-[0-9a-f]{32}")


def keep(dispatcher: Any) -> None:
    """Cache a function's machine code on disk, if a folder for it can be written. If not, it is compiled every time."""
    try:
        dispatcher._cache = _Cache(dispatcher.py_func)
    except RuntimeError:
        return
    # Numba watches only the function's own file, but the function also contains code from neighboring files.
    dispatcher._cache._cache_file._source_stamp = _stamp(Path(dispatcher.py_func.__code__.co_filename).parent)


def drop_old() -> None:
    """Remove kernels from the user's cache that nobody has loaded for long."""
    parent = user_cache()
    if parent is not None:
        drop_unused(parent / NAME, KEY)


@cache
def _stamp(folder: Path) -> bytes:
    """Return a digest of all sources that a function in this folder may depend on, or b"" where sources cannot be read."""
    try:
        paths = [path for source in (Path(__file__).parent, folder) for path in sorted(source.glob("*.py"))]
        sources = [(path.name, path.read_bytes()) for path in paths]
    except OSError:
        return b""
    return hashlib.sha256(repr(sources).encode()).digest() if sources else b""


@cache
def _folder(sources: bytes) -> Path | None:
    """Return the folder for these sources, these library versions and this processor, or None if it cannot be written."""
    parent = user_cache()
    if parent is None or not sources:
        return None
    made_by = numba.__version__, llvmlite.__version__, platform.python_implementation(), platform.python_version()
    processor = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    key = repr((sources, made_by, processor))
    return private_folder(parent, NAME, f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:32]}")


class _Locator:
    """The object that Numba asks where to cache a function."""

    def __init__(self, py_func: Any, py_file: str, folder: Path) -> None:
        self._py_file = py_file
        self._line = py_func.__code__.co_firstlineno
        self._folder = folder

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        folder = _folder(_stamp(Path(py_file).parent))
        return None if folder is None else cls(py_func, py_file, folder)

    def ensure_cache_path(self) -> None:
        """Create the folder again. Numba calls this before each write, because the folder may have been removed."""
        private_folder(self._folder.parents[1], NAME, self._folder.name)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> None:
        """Return nothing: `keep` sets the stamp, for whichever folder was found."""

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Impl(CompileResultCacheImpl):
    # Numba's first locator serves NUMBA_CACHE_DIR.
    _locator_classes: list[Any] = [  # noqa: RUF012  (Numba declares it so)
        *CompileResultCacheImpl._locator_classes[:1], _Locator, *CompileResultCacheImpl._locator_classes[1:],
    ]  # fmt: skip


class _Cache(FunctionCache):
    _impl_class = _Impl
