"""Machines that need not be here: `Hardware`, read from a TOML file, with the sizes and rates that a plan takes.

The folder machines/ has the files that come with asynctile; a user may write others. Every table and key is checked, and an
error names the file and the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asynctile.schedule.rates import LEAST, MOST, Rates
from asynctile.storage.input import LINE_NBYTES, read_file, shown
from asynctile.storage.sizes import parse_size

#: The files that come with asynctile.
FOLDER = Path(__file__).parent / "machines"
SUFFIX = ".toml"
#: The kinds of devices that a file may have.
GPU, CORES = "cuda", "cpu"
#: The most devices of one machine.
MOST_DEVICES = 1024
#: Of RAM, so much is left to tiles; the rest is for the system and for this process.
SPARE = 0.9

#: By table, the keys that must be there, and the keys that may be there.
_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "": (frozenset({"title"}), frozenset()),
    "devices": (frozenset({"kind", "count", "memory_per_s", "operation_s", "flops_per_s"}), frozenset({"memory"})),
    "link": (frozenset({"up_per_s", "down_per_s"}), frozenset()),
    "peers": (frozenset({"per_s"}), frozenset()),
    "ram": (frozenset({"memory", "updated_per_s", "copied_per_s"}), frozenset()),
    "disk": (frozenset({"memory", "per_s"}), frozenset()),
    "verbs": (frozenset(), frozenset()),
}
#: Tables that a file may leave out.
_OPTIONAL = frozenset({"link", "peers", "disk", "verbs"})
_PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine. Sizes are in bytes, rates per second.

    kind: GPU, or CORES for cores that compute in RAM. count: of GPUs, or of cores. memory: of each GPU, that tiles may take;
    None on cores. flops_per_s: of matrix products by precision, on each GPU or on all cores together. up_per_s, down_per_s: of
    the link of each GPU. passed_per_s: between GPUs; None if they have no links. ram, disk: that tiles may take; disk is 0 if
    there is none. verbs: by tile edge, own rates of kernels, as in EntryCosts. The others are as in Rates.
    """

    title: str
    kind: str
    count: int
    memory: int | None
    flops_per_s: Mapping[str, float]
    memory_per_s: float
    operation_s: float
    up_per_s: float
    down_per_s: float
    passed_per_s: float | None
    ram: int
    updated_per_s: float
    copied_per_s: float
    disk: int
    disk_per_s: float
    verbs: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The name that an engine would take for all devices."""
        return self.first(self.count)

    def first(self, count: int) -> str:
        """Return the name of the first `count` GPUs, or of as many as there are."""
        count = min(count, self.count)
        if self.kind == CORES:
            return "cpu"
        return "cuda:0" if count == 1 else f"cuda:0-{count - 1}"

    def rates(self, precision: str) -> Rates:
        """Return the rates by which an engine there would decide. ValueError for a precision that the file has no rate for."""
        if precision not in self.flops_per_s:
            raise ValueError(f"{self.title} has no rate of products in {precision}; its file has {', '.join(self.flops_per_s)}")
        return Rates(flops_per_s=self.flops_per_s[precision], memory_per_s=self.memory_per_s, up_per_s=self.up_per_s,
                     down_per_s=self.down_per_s, updated_per_s=self.updated_per_s, copied_per_s=self.copied_per_s,
                     disk_per_s=self.disk_per_s, operation_s=self.operation_s)  # fmt: skip


def names() -> list[str]:
    """Return the names of the machines that come with asynctile."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def hardware(name: str) -> Hardware:
    """Return the machine of this name, or of the file at this path. ValueError names the file and the key that is wrong."""
    own = FOLDER / f"{name}{SUFFIX}"
    path = own if name in names() else Path(name)
    if path is not own and not path.is_file():
        raise ValueError(f"--machine {shown(name)} is neither a file nor one of {', '.join(names())}")
    return _hardware(_tables(path), name)


def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(str(path), LINE_NBYTES).decode())
    except OSError as error:
        raise ValueError(f"--machine {path} cannot be read: {error.strerror}; name a TOML file") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"--machine {path} is not TOML: {error}; `asynctile info --measure` writes such a file") from error


def _hardware(found: Mapping[str, Any], name: str) -> Hardware:
    tables = _checked(found, name)
    devices, ram = tables["devices"], tables["ram"]
    link, peers, disk = (tables.get(table, {}) for table in ("link", "peers", "disk"))
    number = _Numbers(name)
    kind = devices["kind"]
    if kind not in (GPU, CORES):
        raise ValueError(f"--machine {name}, [devices] kind: {shown(kind)} is not known; expected {GPU} or {CORES}")
    if kind == GPU and not ("memory" in devices and link):
        raise ValueError(f"--machine {name}, [devices]: a GPU needs its memory, and a table [link]")
    if kind == CORES and (peers or link):
        raise ValueError(f"--machine {name}, [link] and [peers]: cores that compute in RAM have none; remove them")
    copied_per_s = number.rate("ram", "copied_per_s", ram["copied_per_s"])
    return Hardware(
        title=number.text("", "title", found["title"]),
        kind=kind,
        count=number.count("devices", "count", devices["count"]),
        memory=number.size("devices", "memory", devices["memory"]) if kind == GPU else None,
        flops_per_s=number.flops(devices["flops_per_s"]),
        memory_per_s=number.rate("devices", "memory_per_s", devices["memory_per_s"]),
        operation_s=number.positive("devices", "operation_s", devices["operation_s"]),
        up_per_s=number.rate("link", "up_per_s", link["up_per_s"]) if link else copied_per_s,
        down_per_s=number.rate("link", "down_per_s", link["down_per_s"]) if link else copied_per_s,
        passed_per_s=number.rate("peers", "per_s", peers["per_s"]) if peers else None,
        ram=int(SPARE * number.size("ram", "memory", ram["memory"])),
        updated_per_s=number.rate("ram", "updated_per_s", ram["updated_per_s"]),
        copied_per_s=copied_per_s,
        disk=number.size("disk", "memory", disk["memory"]) if disk else 0,
        disk_per_s=number.rate("disk", "per_s", disk["per_s"]) if disk else copied_per_s,
        verbs={number.edge(edge): number.verbs(edge, rates) for edge, rates in tables.get("verbs", {}).items()},
    )


def _checked(found: Mapping[str, Any], name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of a file. ValueError if a table or a key is missing or unknown."""
    top = {key for key, value in found.items() if not isinstance(value, dict)}
    tables = {"": {key: found[key] for key in top}, **{key: value for key, value in found.items() if key not in top}}
    for table in _KEYS.keys() - _OPTIONAL:
        if table not in tables:
            raise ValueError(f"--machine {name} has no table [{table}]")
    for table, keys in tables.items():
        where = f"[{table}] " if table else ""
        if table not in _KEYS:
            raise ValueError(f"--machine {name} has a table [{shown(table)}]; expected {', '.join(filter(None, _KEYS))}")
        must, may = _KEYS[table]
        for key in sorted(must - keys.keys()):
            raise ValueError(f"--machine {name}, {where}{key}: missing")
        for key in keys.keys() - must - may:
            if table != "verbs":
                raise ValueError(f"--machine {name}, {where}{shown(key)}: unknown; expected {', '.join(sorted(must | may))}")
    return tables


@dataclass(frozen=True)
class _Numbers:
    """Checks values of one file."""

    file: str

    def _refuse(self, table: str, key: str, value: Any, expected: str) -> ValueError:
        where = f"[{table}] " if table else ""
        return ValueError(f"--machine {self.file}, {where}{key}: {shown(str(value))} is not {expected}")

    def text(self, table: str, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self._refuse(table, key, value, "a line of text")
        return value

    def count(self, table: str, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_DEVICES:
            raise self._refuse(table, key, value, f"a whole number from 1 to {MOST_DEVICES}")
        return value

    def positive(self, table: str, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value <= MOST:
            raise self._refuse(table, key, value, f"a number from {LEAST:g} to {MOST:g}")
        return float(value)

    def size(self, table: str, key: str, value: Any) -> int:
        try:
            nbytes = parse_size(value)
        except (ValueError, TypeError):
            nbytes = 0
        if not 0 < nbytes <= MOST:
            raise self._refuse(table, key, value, 'a size such as "80GiB"')
        return nbytes

    def rate(self, table: str, key: str, value: Any) -> float:
        """Bytes a second, written as a size."""
        return float(self.size(table, key, value))

    def edge(self, key: str) -> int:
        """The edge of tiles, which is a key."""
        if not (key.isascii() and key.isdecimal() and 0 < int(key) <= MOST):
            raise self._refuse("verbs", key, key, "the edge of tiles, such as 512")
        return int(key)

    def verbs(self, edge: str, found: Any) -> Mapping[str, float]:
        if not isinstance(found, dict):
            raise self._refuse("verbs", edge, found, "a table of rates by kernel")
        return {verb: self.positive(f"verbs.{edge}", verb, rate) for verb, rate in found.items()}

    def flops(self, found: Any) -> Mapping[str, float]:
        if not isinstance(found, dict) or not found or not found.keys() <= set(_PRECISIONS):
            raise self._refuse("devices", "flops_per_s", found, f"a table of {', '.join(_PRECISIONS)}")
        return {precision: self.positive("devices.flops_per_s", precision, rate) for precision, rate in found.items()}
