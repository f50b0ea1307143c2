"""How much memory this process may still take: of the machine, of its control groups, and of its own limits.

Covers finding the smallest of them, and asking for address space that libraries are about to take. What becomes of it is a
default cap (asynctile/engine.py) and the words of an error (storage/host.py). A group's limit binds everything in it and below
it, so that of every ancestor is looked at; the page cache of files counts as free, since the kernel gives it back before it
lets anybody starve.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import psutil

from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Of what is left beyond what kernels and a program around them come to take, what tiles get where nobody said how much.
_SHARE = (4, 5)
_PROGRAM_NBYTES = 128 << 20
#: Linux's MAP_NORESERVE, which Python 3.11's mmap does not name: address space without a promise of memory.
NORESERVE = 0x4000
#: Threads of an engine and of its program beside two for each core and those of asyncio.to_thread.
_OTHER_THREADS = 12
_USUAL_STACK_NBYTES = 8 << 20
#: mallopt's M_ARENA_MAX.
_ARENA_MAX = -8
#: The older kind of group says "no limit" by a number of about this size.
_UNLIMITED = 1 << 60


#: Each says how many bytes of address space a library will still take for the threads of an engine.
libraries: list[Callable[[], int]] = []


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that bounds the memory of this process. left: bytes until it does. nbytes: where it is. what: its name.

    is_of_machine: it is the RAM that there is, which nobody can raise.
    """

    left: int
    nbytes: int
    what: str
    is_of_machine: bool = False

    @property
    def share(self) -> int:
        """What tiles get of it where nobody said how much."""
        return max(0, self.left - _PROGRAM_NBYTES) * _SHARE[0] // _SHARE[1]

    @property
    def remedy(self) -> str:
        """How to get more than that."""
        way = "give host_memory" if self.is_of_machine else "raise that limit"
        program = format_size(_PROGRAM_NBYTES)
        return f"since {self} and tiles get four fifths of that less {program} if host_memory is not given, {way}"

    def __str__(self) -> str:
        return f"{self.what} of {format_size(self.nbytes)} leaves {format_size(self.left)}"


def spare_memory() -> int:
    """Bytes of RAM that tiles may take where nobody said how many: a share of what is left under the tightest limit."""
    return tightest().share


def tightest(proc: Path = Path("/proc")) -> Limit:
    """The limit that leaves this process the least."""
    return min(found(proc), key=lambda limit: limit.left)


def found(proc: Path = Path("/proc")) -> list[Limit]:
    """Every limit there is. proc: where the kernel tells about this process."""
    memory = psutil.virtual_memory()
    machine = Limit(memory.available, memory.total, "RAM", is_of_machine=True)
    taken = _stacks_nbytes() + sum(will_take() for will_take in libraries)
    own = (replace(limit, left=max(0, limit.left - taken)) for limit in address_space(proc))
    return [machine, *_of_groups(proc), *own]


def address_space(proc: Path = Path("/proc")) -> Iterator[Limit]:
    """What `ulimit -v` and `ulimit -d` allow; neither cares whether memory was ever touched."""
    for name, field, what in (("RLIMIT_AS", "VmSize", "ulimit -v"), ("RLIMIT_DATA", "VmData", "ulimit -d")):
        nbytes = resource.getrlimit(getattr(resource, name))[0] if hasattr(resource, name) else -1
        if 0 <= nbytes < _UNLIMITED:
            used = _fields(proc / "self/status").get(field + ":")
            if used is not None:
                yield Limit(max(0, nbytes - used * 1024), nbytes, what)


def spare_address_space() -> None:
    """Where it is limited, let new threads allocate from one arena: glibc would reserve 64 MiB for each of them.

    Of the whole process, and not undone: what another arena has reserved stays reserved.
    """
    if any(limit.what == "ulimit -v" for limit in address_space()):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_ARENA_MAX, 1)


def expect_room_to_open() -> None:
    """BudgetError unless an engine can have its threads and kernels: LLVM ends a process that has no room for machine code.

    Loading all kernels took 35 MiB of address space, and matplotlib, which draws a run, 42.
    """
    expect_room(_stacks_nbytes() + _PROGRAM_NBYTES, "an engine's threads and kernels")


def expect_room(nbytes: int, what: str) -> None:
    """BudgetError unless so much more address space can be mapped, which is given back at once. what: it is for."""
    try:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE).close()
    except (OSError, MemoryError) as error:
        limit = min(address_space(), key=lambda limit: limit.left, default=None)
        why = f"which the system refuses: {error}" if limit is None else f"and {limit}; raise that limit"
        floor = nbytes if limit is None else limit.nbytes - limit.left + nbytes
        raise BudgetError(f"{what} take {format_size(nbytes)} of address space, {why}", floor) from error


def _stacks_nbytes() -> int:
    """Address space for the stacks of threads that are still to start; each counts whole, however little of it is used."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0] if resource is not None else -1
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    threads = 2 * usable + min(32, cores + 4) + _OTHER_THREADS
    return threads * (stack if 0 <= stack < _UNLIMITED else _USUAL_STACK_NBYTES)


def _of_groups(proc: Path) -> Iterator[Limit]:
    for folder, name, is_unified in _groups(proc):
        stat = _fields(folder / "memory.stat")
        prefix = "" if is_unified else "total_"
        cache = stat.get(prefix + "inactive_file", 0) + stat.get(prefix + "active_file", 0)
        used = _number(folder / ("memory.current" if is_unified else "memory.usage_in_bytes"))
        limits = [_number(folder / file) for file in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        limits.append(stat.get("hierarchical_memory_limit"))  # of ancestors too that are mounted nowhere here
        set_limits = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
        if used is not None and set_limits:
            limit = min(set_limits)
            yield Limit(max(0, limit - max(0, used - cache)), limit, f"memory cgroup {name}")


def _groups(proc: Path) -> Iterator[tuple[Path, str, bool]]:
    """(folder, name, of the unified hierarchy) of this process's memory groups, and of their ancestors that are mounted."""
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
    """From the group `path` up to what is mounted, the group `root`."""
    inside = PurePosixPath(path)
    # A path that is not below the mount's root is one seen from another namespace: what is mounted is all there is to see.
    below = inside.relative_to(root) if inside.is_relative_to(root) and ".." not in inside.parts else PurePosixPath()
    for group in (below, *below.parents):
        yield Path(mount) / group, str(PurePosixPath(root) / group), is_unified


def _unescaped(field: str) -> str:
    """A path as mountinfo has it, where a blank is \\040."""
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []  # no such system, or no such group: no limit either


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file of lines such as `name 123`."""
    words = [line.split() for line in _lines(path)]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None

