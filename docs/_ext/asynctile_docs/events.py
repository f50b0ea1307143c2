"""The events page: every event with its fields, and the words that their `kind` and `reason` may be."""

from __future__ import annotations

import inspect

from sphinx.pycode import ModuleAnalyzer

from asynctile import events
from asynctile_docs.api import class_entry
from asynctile_docs.docstring import check, inline, to_markdown

__all__ = ["event_list"]


def event_list() -> str:
    """Return the Markdown of asynctile.events. Raises Undocumented for events without a docstring."""
    classes = [name for name in events.__all__ if inspect.isclass(getattr(events, name))]
    source, missing = inspect.getsource(events), set[str]()
    classes.sort(key=lambda name: source.index(f"class {name}"))
    found = [f"## {name}\n\n" + class_entry(f"asynctile.events.{name}", getattr(events, name), missing) for name in classes]
    check(missing)
    return "\n\n".join([*found, "## Kinds and reasons", _constants()])


def _constants() -> str:
    """List the constants, each with the comment above it; one comment may stand for those that follow it."""
    analyzer = ModuleAnalyzer.for_module(events.__name__)
    analyzer.analyze()
    names = [name for name in events.__all__ if isinstance(getattr(events, name), str)]
    found = []
    for name in names:
        text = " ".join(analyzer.attr_docs.get(("", name), ()))
        found.append(f"`{name}` = `{getattr(events, name)!r}`\n: " + (to_markdown(text) if text else inline("See above.")))
    return "\n\n".join(found)
