"""Docstrings as Markdown: the plain text of this project, with its names set as code.

A docstring of asynctile is plain paragraphs. `name: text` at the beginning of a sentence describes an argument or a field. A
block that is indented by four spaces stays as it is. Covers `to_markdown`, `described`, `first_sentence`, and `Undocumented`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

__all__ = ["Undocumented", "check", "described", "first_sentence", "to_markdown"]


class Undocumented(Exception):
    """Public names, options or modules without a description; the message names each."""


#: Code in backticks; words that are code wherever they stand, such as options, snake_case and errors; characters of Markdown.
_WORD = re.compile(
    r"(?P<code>``?[^`]+``?)"
    r"|(?P<word>(?<![\w-])--[a-z][a-z-]*[a-z]|\"[\w.:/+-]+\"|\b(?:None|True|False)\b"
    r"|(?<![\w.])(?:\w+\.)*(?:[A-Za-z]\w*_\w+|[A-Z]\w+(?:Error|Warning))(?:\(\))?(?!\w))"
    r"|(?P<special>[\\*_<\[\]{}#|])"
)
_LIST = re.compile(r"(?:[-*] |\d+\. )")


def to_markdown(text: str, names: Iterable[str] = ()) -> str:
    """Return a docstring as Markdown. names: of arguments and fields, whose `name:` begins a line of its own."""
    return "\n\n".join(_paragraphs(inspect.cleandoc(text), tuple(names)))


def described(text: str, names: Iterable[str]) -> set[str]:
    """Return those of `names` that a docstring describes by `name:`, alone or as one of `name, other:`."""
    found: set[str] = set()
    for match in _label(tuple(names)).finditer(" ".join(inspect.cleandoc(text).split())):
        found.update(re.findall(r"\w+", match[1]))
    return found


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return re.split(r"(?<=[^.][.!?]) (?=[A-Z`'\"])", paragraph)[0]


def check(missing: Iterable[str]) -> None:
    """Raise Undocumented if anything is missing."""
    if names := sorted(set(missing)):
        raise Undocumented(f"{len(names)} without a description: {', '.join(names)}; write their docstrings or help")


def inline(text: str) -> str:
    """Return a line of plain text as Markdown: names become code, and nothing else means anything to Markdown."""

    def replaced(found: re.Match[str]) -> str:
        if found["code"]:
            return found["code"]
        return f"`{found['word']}`" if found["word"] else "\\" + found["special"]

    return _WORD.sub(replaced, text)


def _label(names: tuple[str, ...]) -> re.Pattern[str]:
    """Match `name: ` or `name, other: ` at the beginning of a paragraph or sentence."""
    if not names:
        return re.compile(r"(?!)()")
    name = "`?(?:" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + ")`?"
    return re.compile(rf"(?:(?<=^)|(?<=[.)\];,:] ))({name}(?:(?:, | and |, and ){name})*): ")


def _paragraphs(text: str, names: tuple[str, ...]) -> Iterator[str]:
    label = _label(names)
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            yield "\n".join(["```text", *(line[4:] for line in lines), "```"])
        elif _LIST.match(lines[0]):
            yield "\n".join(map(_list_line, lines))
        else:
            yield _labelled(" ".join(line.strip() for line in lines), label)


def _list_line(line: str) -> str:
    mark = _LIST.match(line)
    return inline(line) if mark is None else mark[0] + inline(line[mark.end() :])


def _labelled(text: str, label: re.Pattern[str]) -> str:
    """Begin a new line, with the name in code, at each `name: ` of a paragraph."""
    out, done = "", 0
    for match in label.finditer(text):
        before = inline(text[done : match.start()]).rstrip()
        labels = ", ".join(f"`{name}`" for name in re.findall(r"\w+", match[1]) if name != "and")
        out += f"{before}\\\n{labels}: " if out or before else f"{labels}: "
        done = match.end()
    return out + inline(text[done:])
