"""Links from code on any page to the reference: `Trainer.save`, `BudgetError`, `--lr`, `asynctile plan`.

Covers `LinkNames`. Nothing is written by hand for it: a literal that is exactly a public name becomes a link.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

from asynctile import __version__
from asynctile.cli.arguments import COMMANDS, build_parser
from asynctile_docs.api import class_entry, full_names
from asynctile_docs.commands import flags
from asynctile_docs.public import SHOWN

__all__ = ["LinkNames", "targets"]

#: How objects are called on the pages: `engine.share(...)` is a method of Engine.
_CALLED = {"engine": "Engine", "share": "Share", "model": "Model", "trainer": "Trainer", "server": "Server"}


@cache
def targets() -> dict[str, tuple[str, str, str]]:
    """Return, by the text of a literal, the domain, the role and the name that it links to."""
    found = {name: ("py", "obj", full) for name, full in full_names().items()}
    for full, members in SHOWN.items():
        module, _, short = full.rpartition(".")
        text = class_entry(full, getattr(import_module(module), short), set())
        entries = set(re.findall(r"^`+{py:(?:method|property|attribute)} (\w+)", text, re.MULTILINE))
        for member in members:
            places = [short, *(called for called, cls in _CALLED.items() if cls == short)]
            places += {"Share": ["engine", "Engine"], "Model": ["GPT2"]}.get(short, [])
            for place in places:
                # What the text of the class describes has no place of its own.
                found.setdefault(f"{place}.{member}", ("py", "obj", f"{full}.{member}" if member in entries else full))
    parser = build_parser(__version__)
    for command in reversed(COMMANDS):
        for flag in flags(parser.commands[command]):
            found[flag] = ("std", "option", f"asynctile-{command} {flag}")
    return found


class LinkNames(SphinxTransform):
    """Makes a link of each literal that is a public name, but in headings, in links and in signatures."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Change the page."""
        known, document = targets(), self.document
        for literal in list(document.findall(nodes.literal)):
            if literal.get("classes") or _is_inside(literal, (nodes.title, nodes.reference, addnodes.pending_xref)):
                continue
            text = literal.astext()
            found = known.get(re.sub(r"\(.*\)$", "", text)) or known.get(text.split(" ")[0] if text.startswith("--") else "")
            if found is None:
                continue
            domain, role, name = found
            program, _, flag = name.rpartition(" ")
            options: dict[str, Any] = {"std:program": program} if role == "option" else {"py:module": None, "py:class": None}
            link = addnodes.pending_xref("", refdomain=domain, reftype=role, reftarget=flag if role == "option" else name,
                                         refexplicit=True, refwarn=True, refdoc=self.env.docname, **options)  # fmt: skip
            literal["classes"].append("name")
            literal.replace_self(link)
            link += literal


def _is_inside(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False
