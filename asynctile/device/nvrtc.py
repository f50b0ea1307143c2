"""Machine code of the CUDA kernels for one GPU: compiled by NVRTC and kept on disk between starts.

The way not taken: cupy.RawModule. It appends -ftz=true to the options of every compile, and the last one wins. AdamW on the GPU
would then flush subnormal numbers that the CPU keeps.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from asynctile.kernels.cpu import cache_folder
from asynctile.kernels.cuda import options
from asynctile.storage.cache import Cache

#: The folder next to other machine code, and the suffix of its files.
FOLDER, SUFFIX = "cubins", ".cubin"
#: The most files, their most bytes in total, and the most bytes of one file.
MOST, MOST_NBYTES, LARGEST_NBYTES = 16, 64 << 20, 16 << 20
_DIGEST_NBYTES = hashlib.sha256().digest_size


def machine_code(library: Any, source: str, capability: tuple[int, int], folder: Path | None = None) -> bytes:
    """Return `source` compiled for GPUs of a capability such as (9, 0), from disk if it is there. Blocks.

    library: cupy_backends.cuda.libs.nvrtc. folder: the parent of FOLDER, None for the folder of the CPU kernels. Newly compiled
    code is kept on disk. Raises ValueError for a capability that NVRTC has no code for, and RuntimeError with NVRTC's log if it
    refused the source.
    """
    chosen = options(target(library, capability))
    cache, key = _cache(folder), _key(source, chosen, library.getVersion())
    content = None if cache is None else cache.read(key)
    if content is not None and content[:_DIGEST_NBYTES] == _digest(key, content[_DIGEST_NBYTES:]):
        return content[_DIGEST_NBYTES:]
    code = compile_source(library, source, chosen)[0]
    if cache is not None:
        cache.keep(key, _digest(key, code) + code)
    return code


def compile_source(library: Any, source: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Compile with NVRTC, and return the code and NVRTC's log. Raises RuntimeError with the log if NVRTC refused.

    The code is machine code, or PTX if the options name a virtual architecture.
    """
    program = library.createProgram(source, "kernels.cu", (), ())
    try:
        try:
            library.compileProgram(program, options)
        except library.NVRTCError as error:
            raise RuntimeError(library.getProgramLog(program).strip() or str(error)) from error
        is_virtual = any("compute_" in option for option in options)
        code = library.getPTX(program) if is_virtual else library.getCUBIN(program)
        return code, library.getProgramLog(program)
    finally:
        library.destroyProgram(program)


def target(library: Any, capability: tuple[int, int]) -> str:
    """Return the architecture to compile for: the GPU's own, or the newest virtual one if the GPU is newer than NVRTC.

    The driver compiles code for a virtual architecture further.
    """
    wanted = 10 * capability[0] + capability[1]
    older = [known for known in library.getSupportedArchs() if known <= wanted]
    if not older:
        major, minor = library.getVersion()
        raise ValueError(f"NVRTC {major}.{minor} has no code for compute capability {capability[0]}.{capability[1]}")
    return f"sm_{wanted}" if wanted in older else f"compute_{max(older)}"


def kept_in(folder: Path) -> Cache:
    """Return the cache of machine code in the folder FOLDER of `folder`."""
    return Cache(folder, FOLDER, SUFFIX, most=MOST, most_nbytes=MOST_NBYTES, largest_nbytes=LARGEST_NBYTES)


def _cache(folder: Path | None) -> Cache | None:
    folder = cache_folder() if folder is None else folder
    return None if folder is None else kept_in(folder)


def _key(source: str, options: tuple[str, ...], version: tuple[int, int]) -> str:
    """Return a digest of everything that determines the machine code."""
    return hashlib.sha256(repr((source, options, tuple(version))).encode()).hexdigest()


def _digest(key: str, code: bytes) -> bytes:
    return hashlib.sha256(key.encode() + code).digest()
