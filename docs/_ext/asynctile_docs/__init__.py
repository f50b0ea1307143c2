"""The Sphinx extension behind this site: it writes the reference from the code and links names to it.

A page holds `<!-- generated: NAME -->` where generated Markdown goes; generated.py says which names there are. links.py turns
code such as `Trainer.save` or `--lr` on any page into a link to the reference.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from asynctile_docs.docstring import Undocumented
from asynctile_docs.generated import expand
from asynctile_docs.links import LinkNames

__all__ = ["setup"]

#: A Markdown link to another page by a relative path, with or without an anchor.
_PAGE = re.compile(r"\]\((\.\./[^)#\s]+\.md)(?:#[^)\s]*)?\)")


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("builder-inited", _stop_unless_documented)
    app.connect("source-read", _fill_in)
    app.add_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _stop_unless_documented(app: Any) -> None:
    """End the build, with one line a page, if public names, options or modules have no description."""
    said = []
    for page in sorted(Path(app.srcdir, "reference").glob("*.md")):
        try:
            expand(page.read_text())
        except Undocumented as error:
            said.append(f"docs/reference/{page.name}: {error}")
    if said:
        sys.exit("\n".join(said))


def _fill_in(app: Any, docname: str, source: list[str]) -> None:
    """Write the generated parts of a page. Links to Markdown that is not part of the site become downloads."""
    folder = Path(app.env.doc2path(docname)).parent

    def linked(found: re.Match[str]) -> str:
        outside = not (folder / found[1]).resolve().is_relative_to(app.srcdir)
        return f"](path:{found[1]})" if outside else found[0]

    source[0] = _PAGE.sub(linked, expand(source[0]))
