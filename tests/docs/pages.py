"""Pages as the tests of the documentation read them: which there are, their links, their anchors and their blocks of code.

Covers `PAGES`, `SITE`, `Block`, `blocks`, `links`, `anchors` and `commands`. How a page is run is running.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from asynctile_docs.generated import expand
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Pages of the site, and pages that are read where the repository is.
SITE = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/results/README.md")), *SITE]

_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)
_RUN = re.compile(r"<!-- run(?: with (.+?))? -->\s*\Z")
#: A test that runs the blocks from here to the next heading of level 2 by itself, since they need more than this one has.
_ELSEWHERE = re.compile(r"<!-- (tests/(?:reference|ray)/\w+\.py) runs ")
_SHELL = ("console", "sh", "bash", "shell")


@dataclass(frozen=True)
class Block:
    """A block of code. line: of its first line of code, from 1. not_run: the reason that is written above it, else None.

    run: the options that `<!-- run with ... -->` above a console block adds to its commands, "" for `<!-- run -->`, else None.
    elsewhere: the test that a comment above says runs it, else None.
    """

    page: Path
    language: str
    text: str
    line: int
    not_run: str | None = None
    run: str | None = None
    elsewhere: str | None = None

    @property
    def place(self) -> str:
        """Its page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def _tokens(page: Path, *, generated: bool = False) -> list[Token]:
    text = page.read_text()
    return MarkdownIt("commonmark").enable("table").parse(expand(text) if generated else text)


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Return the blocks of code of a page, in order; indented ones have no language."""
    found, comment, elsewhere = list[Block](), "", None
    for token in _tokens(page):
        if token.type == "heading_open" and token.tag in ("h1", "h2"):
            elsewhere = None
        if token.type in ("fence", "code_block") and token.map is not None:
            fenced = token.type == "fence"
            not_run, run = _NOT_RUN.search(comment), _RUN.search(comment)
            found.append(Block(
                page, token.info.split(" ")[0] if fenced else "", token.content, token.map[0] + (2 if fenced else 1),
                not_run=not_run[1] if not_run else None, run=(run[1] or "") if run else None, elsewhere=elsewhere,
            ))  # fmt: skip
        if token.type == "html_block":
            comment = token.content
            if match := _ELSEWHERE.search(comment):
                elsewhere = match[1]
        elif token.level == 0 or token.type in ("fence", "code_block"):
            comment = ""
    return tuple(found)


def commands(block: Block) -> Iterator[tuple[int, str]]:
    """Yield the shell commands of a block with their lines: in a console those behind `$ `, else each line of its own.

    A line that ends in a backslash goes on in the next.
    """
    lines = block.text.splitlines()
    prompted = any(line.startswith("$ ") for line in lines)
    number = 0
    while number < len(lines):
        start, text = number, lines[number]
        while text.endswith("\\") and number + 1 < len(lines):
            number += 1
            text = text[:-1] + lines[number]
        number += 1
        if text.startswith("$ ") if prompted else text.strip():
            yield block.line + start, text.removeprefix("$ ") if prompted else text


def calls(block: Block) -> Iterator[tuple[int, list[str]]]:
    """Yield the arguments of each call of `asynctile` in a block of shell commands, with its line.

    In a block without a language only lines that begin with it count.
    """
    if block.language not in (*_SHELL, ""):
        return
    for line, command in commands(block):
        if "asynctile" not in command or not (block.language or command.startswith("asynctile ")):
            continue  # an indented block may be any drawing
        reader = shlex.shlex(command, posix=True, punctuation_chars=True)
        reader.wordchars += "-.,:+=@%[]{}~/"
        words: list[str] | None = None
        for word in [*reader, ";"]:
            if set(word) <= set("();<>|&"):
                if words is not None:
                    yield line, words
                words = None
            elif words is not None:
                words.append(word)
            elif word == "asynctile" or word.endswith("/asynctile"):
                words = []


class _References(HTMLParser):
    """What a page's HTML links to, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [link for name in ("href", "src") if (link := values.get(name))]
        self.anchors += [anchor for name in ("id", "name") if (anchor := values.get(name))]


def _inside(page: Path, *, generated: bool = False) -> Iterator[tuple[int, Token]]:
    """Yield every token of a page, those inside lines too, with its line."""
    line = 1
    for token in _tokens(page, generated=generated):
        line = token.map[0] + 1 if token.map is not None else line
        yield line, token
        for child in token.children or ():
            yield line, child


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield every link and image of a page that leads to no other site, with its line."""
    for line, token in _inside(page):
        found = [str(token.attrs[name]) for name in ("href", "src") if name in token.attrs]
        if token.type in ("html_block", "html_inline"):
            reader = _References()
            reader.feed(token.content)
            found += reader.links
        yield from ((line, link) for link in found if not re.match(r"[a-z]+:", link))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page: of its headings as GitHub and MyST make them, of generated ones, and `(name)=`."""
    found, counts = set[str](), dict[str, int]()
    tokens = list(_tokens(page, generated=DOCS in page.parents))
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            text = "".join(child.content for child in tokens[place + 1].children or () if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = counts[slug] = counts.get(slug, -1) + 1
            found.add(f"{slug}-{count}" if count else slug)
        if token.type in ("html_block", "inline"):
            reader = _References()
            reader.feed(token.content)
            found.update(reader.anchors)
            found.update(re.findall(r"^\(([\w-]+)\)=$", token.content, re.MULTILINE))
    return frozenset(found)
