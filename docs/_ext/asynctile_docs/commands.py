"""The commands page: every command, its usage and every option, read from the parsers that the program itself uses.

Covers `command_list` and `flags`. Groups, defaults and help are those of `--help`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import fields

from asynctile import __version__
from asynctile.cli.arguments import COMMANDS, Parser, build_parser
from asynctile.cli.option import options_of
from asynctile.cli.options import Options
from asynctile_docs.docstring import check, inline

__all__ = ["command_list", "flags"]

_TABLE = options_of(Options)
_DEFAULTS = {item.name: item.default for item in fields(Options)}
_DEFAULT = re.compile(r"\s*\(default: (.*)\)$", re.DOTALL)


def command_list() -> str:
    """Return the Markdown of all commands. Raises Undocumented for options without help."""
    parser, missing, found = build_parser(__version__), set[str](), []
    for name in COMMANDS:
        found += _command(name, parser.commands[name], missing)
    found.append("## Without a command\n\n```{program} asynctile\n```")
    found += [_option(action, parser, missing) for action in _own(parser)]
    check(missing)
    return "\n\n".join(found)


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """Return every option of a parser as it is typed, --help aside."""
    return [flag for action in _own(parser) for flag in action.option_strings]


def _own(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    skipped = (argparse._HelpAction, argparse._SubParsersAction)
    return [action for action in parser._actions if not isinstance(action, skipped)]


def _command(name: str, parser: argparse.ArgumentParser, missing: set[str]) -> Iterator[str]:
    required = [action for action in _own(parser) if action.required]
    words = [" ".join([*action.option_strings[:1], str(action.metavar)]) for action in required]
    optional = any(not action.required for action in _own(parser))
    yield f"## asynctile {name}\n\n{inline(COMMANDS[name])}"
    yield f"```text\n{' '.join(['asynctile', name, *words, *(['[OPTION ...]'] if optional else [])])}\n```"
    yield f"```{{program}} asynctile-{name}\n```"
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        shown = [action for action in actions if action.help is not argparse.SUPPRESS]
        if shown and group.title not in ("options", "positional arguments"):
            yield f"### {name}: {_plain(str(group.title))}"
        for action in shown:
            yield _option(action, parser, missing)
    hidden = [action for action in _own(parser) if action.help is argparse.SUPPRESS]
    if hidden:
        flags = ", ".join(f"`{action.option_strings[0]}`" for action in hidden)
        yield f"### {name}: options without effect"
        yield f"`asynctile {name}` also takes these options of `asynctile train`, and ignores them: {flags}."


def _plain(title: str) -> str:
    """Return a heading of `--help` without its remark in brackets."""
    return title.partition(" (")[0]


def _option(action: argparse.Action, parser: argparse.ArgumentParser, missing: set[str]) -> str:
    metavar = "" if action.nargs == 0 or action.metavar in (None, "") else f" {action.metavar}"
    typed = ", ".join(flag + metavar for flag in action.option_strings) or str(action.metavar)
    text = "" if not action.help else parser._get_formatter()._expand_help(action)
    if not text:
        missing.add(f"{parser.prog} {typed}")
    default = _DEFAULT.search(text)
    lines = [inline(_sentence(_DEFAULT.sub("", text)))]
    if default:
        value = default[1] if " " in default[1] or default[1] in ("none", "all", "any", "neither") else f"`{default[1]}`"
        lines.append(f"Default: {inline(_sentence(value, upper=False))}")
    elif action.required:
        lines.append("Required.")
    lines += _remarks(action, parser)
    return "\n".join([f"````{{option}} {typed}", "", "\\\n".join(lines), "````"])


def _remarks(action: argparse.Action, parser: Parser | argparse.ArgumentParser) -> Iterator[str]:
    """Say what the table of options says beside help and default; for `train` alone."""
    entry = _TABLE.get(action.dest)
    if entry is None or not parser.prog.endswith(" train"):
        return
    if entry.repeatable:
        yield "May be given several times."
    if not entry.config:
        yield "Not read from a `--config` file."
    if entry.forgotten:
        yield "Not remembered by the run: give it again with `--resume`."
    elif not entry.changeable:
        yield "Fixed for the whole run: `--resume` cannot change it."


def _sentence(text: str, *, upper: bool = True) -> str:
    text = " ".join(text.split())
    first = text.split(" ")[0]
    if upper and first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
