"""The words of a trace: the name of a piece of work, its arguments, and the reason why an operation stalled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile
from asynctile.streams.recorder import Ran, Stalled

#: Better names for some functions.
_VERBS = {"copyto": "copy", "_unpin": "unpin", "file_work": ""}


def text_of(verb: str, what: object) -> tuple[str, str]:
    """Return the name of a piece of work, as JSON, and its members "cat" and "args".

    verb: name of the function that did it, or of its stream. what: the operation, the tile, or another object that the work
    is about.
    """
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
    """Return the arguments of an event as JSON. It has no NaN or infinity: if there are any, floats become words."""
    try:
        return json.dumps(args, allow_nan=False)
    except ValueError:
        return json.dumps({key: value if isinstance(value, int | str) else str(value) for key, value in args.items()})


def describe(what: object) -> str:
    """Return words for an operation with its tiles, for a tile, or for what a stream was told that its work is about."""
    if isinstance(what, Operation):
        return f"{what.kernel}({', '.join([tile.name for tile in what.operands])})"
    if isinstance(what, Tile):
        return what.name
    return "" if what is None else str(what)


def waiting(stall: Stalled) -> str:
    """Return words for the operation that waited, or for a copy that makes room within the memory that operations run in."""
    what = stall.operation
    return f"copy {what.name}" if isinstance(what, Tile) else describe(what)


def waits_for(stall: Stalled) -> str:
    """Return words for the longest part of a stall: the copy itself, its queue, or the work that the copy waited for."""
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
        return f"{verb} behind {what.kernel}, which still uses its slot"
    return f"{verb} behind {_copying(stream, what, copy.what)} of {'this tile' if what is copy.what else describe(what)}"


def _copying(stream: str, what: object, wanted: object) -> str:
    """Return the verb for the work of a stream on tile `what`.

    wanted: the tile that is waited for, or whose place is.
    """
    if stream == "spill":
        return "read" if what is wanted else "write"
    return stream


def _shape(tile: Tile) -> str:
    return f"{tile.name} {'x'.join(map(str, tile.shape))} {tile.dtype}"
