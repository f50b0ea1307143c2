"""The generated parts of the reference, by the name that a page asks for them with.

Covers `expand`, `Undocumented`, and which generators there are. Each generator returns Markdown for MyST.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from asynctile_docs.api import entries, error_entry
from asynctile_docs.code_map import code_map
from asynctile_docs.commands import command_list
from asynctile_docs.events import event_list
from asynctile_docs.metrics import metric_list

__all__ = ["GENERATORS", "expand"]

GENERATORS: dict[str, Callable[..., str]] = {
    "api": entries,
    "commands": command_list,
    "error": error_entry,
    "events": event_list,
    "map": code_map,
    "metrics": metric_list,
}
_PLACE = re.compile(r"^<!-- generated: (\w+)((?: [\w.]+)*) -->$", re.MULTILINE)


def expand(text: str) -> str:
    """Return a page's Markdown with every `<!-- generated: NAME ARGUMENT ... -->` replaced by what GENERATORS[NAME] writes.

    Raises Undocumented, naming each public name, option or module that has no description; KeyError for an unknown NAME.
    """
    return _PLACE.sub(lambda found: GENERATORS[found[1]](*found[2].split()), text)
