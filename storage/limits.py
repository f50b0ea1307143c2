"""The memory that this process may still take: what the machine, its control groups and its own limits leave.

Covers finding the tightest limit, and checking for address space that libraries are about to take. The result becomes a default
cap (asynctile/engine.py) and part of an error message (storage/host.py).

A control group's limit binds every process in it and below it, so the limits of all ancestors count. The page cache of files
counts as free, because the kernel gives it back before a process runs out of memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import psutil

from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size

#: If the user sets no cap, tiles get this fraction of what a limit leaves after _PROGRAM_NBYTES, which is for kernels and the
#: program around them.
_SHARE = (4, 5)
_PROGRAM_NBYTES = 128 << 20
#: Linux's MAP_NORESERVE (missing in Python 3.11's mmap): address space without a promise of memory.
NORESERVE = 0x4000
#: Threads of an engine and its program, beyond two for each core and those of asyncio.to_thread.
_OTHER_THREADS = 12
_USUAL_STACK_NBYTES = 8 << 20
#: M_ARENA_MAX, an option of mallopt.
_ARENA_MAX = -8
#: Older control groups write "no limit" as a number of about this size.
_UNLIMITED = 1 << 60


#: Functions that return how many bytes of address space a library will still take for the threads of an engine.
libraries: list[Callable[[], int]] = []


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit on the memory of this process.

    left: bytes until the limit is reached. nbytes: the limit itself, in bytes. what: its name. is_of_machine: the limit is the
    installed RAM, which cannot be raised.
    """

    left: int
    nbytes: int
    what: str
    is_of_machine: bool = False

    @property
    def share(self) -> int:
        """Bytes that tiles get under this limit if the user sets no cap."""
        return max(0, self.left - _PROGRAM_NBYTES) * _SHARE[0] // _SHARE[1]

    @property
    def remedy(self) -> str:
        """How to get more than `share`, as the last part of a message."""
        way = "give host_memory" if self.is_of_machine else "raise that limit"
        program = format_size(_PROGRAM_NBYTES)
        return f"{self}; without host_memory, tiles get four fifths of that after {program} are set aside: {way}"

    def __str__(self) -> str:
        return f"{self.what} of {format_size(self.nbytes)} leaves {format_size(self.left)}"


def spare_memory() -> int:
    """Return the bytes of RAM that tiles may take if the user sets no cap: a share of what the tightest limit leaves."""
    return tightest().share


def tightest(proc: Path = Path("/proc")) -> Limit:
    """Return the limit that leaves this process the least."""
    return min(found(proc), key=lambda limit: limit.left)


def found(proc: Path = Path("/proc")) -> list[Limit]:
    """Return every limit that applies. proc: the folder in which the kernel describes this process."""
    memory = psutil.virtual_memory()
    machine = Limit(memory.available, memory.total, "RAM", is_of_machine=True)
    taken = _stacks_nbytes() + sum(will_take() for will_take in libraries)
    own = (replace(limit, left=max(0, limit.left - taken)) for limit in address_space(proc))
    return [machine, *_of_groups(proc), *own]


def address_space(proc: Path = Path("/proc")) -> Iterator[Limit]:
    """Yield the limits set by `ulimit -v` and `ulimit -d`. Both count memory even if it was never touched."""
    for kind, field, what in ((resource.RLIMIT_AS, "VmSize", "ulimit -v"), (resource.RLIMIT_DATA, "VmData", "ulimit -d")):
        nbytes, _ = resource.getrlimit(kind)
        if 0 <= nbytes < _UNLIMITED:
            used = _fields(proc / "self/status").get(field + ":")
            if used is not None:
                yield Limit(max(0, nbytes - used * 1024), nbytes, what)


def spare_address_space() -> None:
    """If address space is limited, make new threads allocate from one glibc arena; glibc would reserve 64 MiB for each.

    This changes the whole process and is not undone, because space that another arena has reserved stays reserved.
    """
    if any(limit.what == "ulimit -v" for limit in address_space()):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_ARENA_MAX, 1)


def expect_room_to_open() -> None:
    """Raise BudgetError unless there is room for the threads and kernels of an engine.

    Without this check, LLVM would end the process when it has no room for machine code. Loading all kernels took 35 MiB of
    address space, and matplotlib, which draws a run, 42 MiB.
    """
    expect_room(_stacks_nbytes() + _PROGRAM_NBYTES, "an engine's threads and kernels")


def expect_room(nbytes: int, what: str) -> None:
    """Raise BudgetError unless `nbytes` more of address space can be mapped (and unmapped at once). what: needs them."""
    try:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE).close()
    except (OSError, MemoryError) as error:
        limit = min(address_space(), key=lambda limit: limit.left, default=None)
        why = f"which the system refuses: {error}" if limit is None else f"and {limit}; raise that limit"
        floor = nbytes if limit is None else limit.nbytes - limit.left + nbytes
        raise BudgetError(f"{what} take {format_size(nbytes)} of address space, {why}", floor) from error


def _stacks_nbytes() -> int:
    """Return the address space for the stacks of threads that are still to start; a stack counts whole, used or not."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    threads = 2 * len(os.sched_getaffinity(0)) + min(32, (os.cpu_count() or 1) + 4) + _OTHER_THREADS
    return threads * (stack if 0 <= stack < _UNLIMITED else _USUAL_STACK_NBYTES)


def _of_groups(proc: Path) -> Iterator[Limit]:
    for folder, name, is_unified in _groups(proc):
        stat = _fields(folder / "memory.stat")
        prefix = "" if is_unified else "total_"
        cache = stat.get(prefix + "inactive_file", 0) + stat.get(prefix + "active_file", 0)
        used = _number(folder / ("memory.current" if is_unified else "memory.usage_in_bytes"))
        limits = [_number(folder / file) for file in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        limits.append(stat.get("hierarchical_memory_limit"))  # includes ancestors that are not mounted here
        set_limits = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
        if used is not None and set_limits:
            limit = min(set_limits)
            yield Limit(max(0, limit - max(0, used - cache)), limit, f"memory cgroup {name}")


def _groups(proc: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield (folder, name, is unified) for each memory group of this process, and for those ancestors that are mounted."""
    paths: dict[bool, str] = {}
    for line in _lines(proc / "self/cgroup"):
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" or "memory" in controllers.split(","):
            paths[number == "0"] = path
    for line in _lines(proc / "self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        is_unified = kind[:1] == ["cgroup2"]
        is_older = kind[:1] == ["cgroup"] and "memory" in kind[-1].split(",")
        if len(fields) > 4 and (is_unified or is_older) and is_unified in paths:
            yield from _upwards(_unescaped(fields[4]), _unescaped(fields[3]), paths[is_unified], is_unified)


def _upwards(mount: str, root: str, path: str, is_unified: bool) -> Iterator[tuple[Path, str, bool]]:
    """Yield the group `path` and its ancestors, up to the mounted group `root`, as `_groups` does."""
    inside = PurePosixPath(path)
    # A path that is not below the mount's root comes from another namespace: only the mounted group itself is visible.
    below = inside.relative_to(root) if inside.is_relative_to(root) and ".." not in inside.parts else PurePosixPath()
    for group in (below, *below.parents):
        yield Path(mount) / group, str(PurePosixPath(root) / group), is_unified


def _unescaped(field: str) -> str:
    """Return a path of mountinfo with its escapes undone; a space is written \\040 there."""
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []  # no such group: no limit


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines look like `name 123`."""
    words = [line.split() for line in _lines(path)]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None

