"""Links and anchors between pages lead somewhere; files that pages of the site name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, SITE, anchors, links

FOLDERS = ("asynctile", "layers", "storage", "tests", "bench", "examples")


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere, each with its line and why."""
    found = []
    for line, link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            found.append(f"line {line}: {link}: there is no such file")
        elif not target.is_relative_to(ROOT):
            found.append(f"line {line}: {link}: it leads out of the repository")
        elif anchor and anchor not in anchors(target):
            found.append(f"line {line}: {link}: there is no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = DOCS / "index.md"
    assert "tutorials/index.md" in [link for _, link in links(page)]
    assert {"train", "asynctile-train", "api"} & anchors(DOCS / "reference" / "commands.md") == {"asynctile-train"}
    assert "engine" in anchors(DOCS / "reference" / "api.md")


def test_every_page_is_on_a_list() -> None:
    """Each page of a section stands on the section's own page, and each section on the first page."""
    for page in SITE:
        if page.name == "index.md" and page.parent == DOCS:
            continue
        above = page.parent.parent / "index.md" if page.name == "index.md" else page.parent / "index.md"
        assert page in {(above.parent / link).resolve() for _, link in links(above)}, f"{above} does not list {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_in_the_text_are_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it may name files that are gone
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
