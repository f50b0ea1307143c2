"""The names of devices, as `Engine(device=...)` and `--device` take them, and of their streams. Pure.

    auto, cpu, emulated, cuda:1      one device
    emulated*4                       four emulated devices
    cuda:0-3, cuda:0,cuda:2          several GPUs
    cuda:all                         every GPU of the machine
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from asynctile.errors import DeviceError
from asynctile.storage.input import shown

#: The names that the machine gives a meaning: `resolved` of this package says which.
AUTO, ALL_GPUS = "auto", "cuda:all"
#: Most devices of one engine.
MOST = 64
#: For messages: how to name devices.
KNOWN = "'auto', 'cpu', 'emulated' or 'cuda:N', or several, such as 'emulated*2'"
_ONE = {AUTO, ALL_GPUS, "cpu", "emulated", "cuda"}
_GPUS = re.compile("cuda:([0-9]{1,6})(?:-([0-9]{1,6}))?")


def names_of(text: str) -> tuple[str, ...]:
    """Return the name of each device that `text` names, in order. AUTO and ALL_GPUS stand for themselves.

    DeviceError for an unknown name. ValueError for a device that is named twice, for unlike devices, and for a number of
    devices that is not between 1 and MOST.
    """
    if text in _ONE:
        return (text,)
    names = [name for part in text.split(",") for name in _names_of_part(part.strip(), text)]
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in names))
    if len(kinds) > 1:
        raise ValueError(f"device {shown(text)} names unlike devices, {' and '.join(kinds)}: name devices of one kind")
    twice = next((name for name in names if names.count(name) > 1), None)
    if "," in text and twice is not None:
        more = "; two of them are 'emulated*2'" if twice == "emulated" else ""
        raise ValueError(f"device {shown(text)} names {twice} twice: name each device once{more}")
    _check_count(text, str(len(names)))
    return tuple(names)


def joined(names: Sequence[str]) -> str:
    """Return one name for all these devices, which `names_of` understands."""
    return f"{names[0]}*{len(names)}" if names[1:] and len(set(names)) == 1 else ",".join(names)


def stream_name(stream: str, number: int, devices: int) -> str:
    """Return the name of a stream of device `number`, which no other device of the engine has for one of its streams."""
    return stream if devices == 1 else f"{stream}:{number}"


def _names_of_part(part: str, text: str) -> list[str]:
    """Return the names of the devices that a part of `text` names, from one comma to the next."""
    if gpus := _GPUS.fullmatch(part):
        first, last = int(gpus[1]), int(gpus[2] or gpus[1])
        if last < first:
            raise ValueError(f"device {shown(text)} counts down: write 'cuda:{last}-{first}'")
        _check_count(text, str(last - first + 1))
        return [f"cuda:{number}" for number in range(first, last + 1)]
    kind, times, count = part.partition("*")
    if kind == "cpu" and times:
        raise ValueError(f"device {shown(text)} is RAM several times, and there is one: give 'cpu', which uses all cores")
    if part != "cpu" and kind != "emulated":
        raise DeviceError(f"unknown device {shown(text)}: expected {KNOWN}")
    if not times:
        return [kind]
    _check_count(text, count)
    return [kind] * int(count)


def _check_count(text: str, count: str) -> None:
    """Raise ValueError for a number of devices that is no number, or not between 1 and MOST."""
    if not re.fullmatch("[0-9]{1,9}", count) or not 1 <= int(count) <= MOST:
        raise ValueError(f"device {shown(text)} asks for {count or 'no number of'} devices: expected a number from 1 to "
                         f"{MOST}, such as 'emulated*2'")  # fmt: skip
