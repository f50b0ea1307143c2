"""The words of a trace: what work is called, its arguments, and what an operation that stalled was waiting for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile
from asynctile.streams.recorder import Ran, Stalled

#: Functions whose name says less than this.
_VERBS = {"copyto": "copy", "_unpin": "unpin", "file_work": ""}


def text_of(verb: str, what: object) -> tuple[str, str]:
    """Name, as JSON, and the members "cat" and "args" of a piece of work; verb: the function that did it, or its stream."""
    if isinstance(what, Operation):
        args = {
            "tiles": [f"{_shape(tile)} ({how})" for tile, how in zip(what.operands, what.access, strict=True)],
            "params": list(what.params), "flops": what.flops,
        }  # fmt: skip
        return json.dumps(what.kernel), f'"cat":"kernel","args":{as_json(args)}'
    name = f"{_VERBS.get(verb, verb)} {describe(what)}".strip()
    if isinstance(what, Tile):
        return json.dumps(name), f'"cat":"copy","args":{as_json({"tile": _shape(what), "bytes": what.nbytes})}'
    return json.dumps(name), '"cat":"work","args":{}'


def as_json(args: Mapping[str, Any]) -> str:
    """Arguments of an event. JSON has no NaN and no infinity: where there are some, numbers become words."""
    try:
        return json.dumps(args, allow_nan=False)
    except ValueError:
        return json.dumps({key: value if isinstance(value, int | str) else str(value) for key, value in args.items()})


def describe(what: object) -> str:
    """An operation, with the names of its tiles, a tile, or what a stream was told that its work is about."""
    if isinstance(what, Operation):
        return f"{what.kernel}({', '.join([tile.name for tile in what.operands])})"
    if isinstance(what, Tile):
        return what.name
    return "" if what is None else str(what)


def waiting(stall: Stalled) -> str:
    """The operation that waited; or a copy within the memory that operations run in, which makes room for one."""
    what = stall.operation
    return f"copy {what.name}" if isinstance(what, Tile) else describe(what)


def waits_for(stall: Stalled) -> str:
    """What an operation waited for most of the time: its copy, or what this was behind."""
    copy = stall.copy
    verb = _copying(copy.stream, copy.what, copy.what)
    if not copy.ended:
        return f"{verb} under way" if copy.began else _not_begun(copy, verb)
    began = min(max(copy.began, stall.began), stall.ended)
    ready = min(max(copy.ready, stall.began), began) if copy.ready else began
    moving, queued, behind = stall.ended - began, began - ready, ready - stall.began
    if moving >= max(queued, behind):
        return f"{verb} under way"
    return f"{verb} queued" if queued >= behind else _not_begun(copy, verb)


def _not_begun(copy: Ran, verb: str) -> str:
    if copy.behind is None:
        return f"{verb} not begun"
    stream, what = copy.behind
    if isinstance(what, Operation):
        return f"{verb} behind {what.kernel}, which uses its place"
    return f"{verb} behind {_copying(stream, what, copy.what)} of {'it' if what is copy.what else describe(what)}"


def _copying(stream: str, what: object, wanted: object) -> str:
    """What a stream does with a tile that is, or whose place is, wanted."""
    if stream == "spill":
        return "read" if what is wanted else "write"
    return stream


def _shape(tile: Tile) -> str:
    return f"{tile.name} {'x'.join(map(str, tile.shape))} {tile.dtype}"
