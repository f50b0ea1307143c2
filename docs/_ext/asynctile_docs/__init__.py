"""The Sphinx extension behind this site: it writes the reference from the code and links names to it.

A page holds `<!-- generated: NAME -->` where generated Markdown goes; generated.py says which names there are. links.py turns
code such as `Trainer.save` or `--lr` on any page into a link to the reference.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes

from asynctile_docs.generated import expand
from asynctile_docs.links import LinkNames

__all__ = ["setup"]


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _fill_in)
    app.connect("doctree-read", _let_tables_scroll)
    app.add_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _fill_in(app: Any, docname: str, source: list[str]) -> None:
    source[0] = expand(source[0])


def _let_tables_scroll(app: Any, doctree: nodes.document) -> None:
    """Put each table that Furo has not wrapped into a box that scrolls, so that a narrow screen keeps the page's width."""
    for table in list(doctree.findall(nodes.table)):
        box = nodes.container(classes=["table-box"])
        table.replace_self(box)
        box += table
