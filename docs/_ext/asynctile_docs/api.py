"""The API page: public classes and functions with their signatures and docstrings, as directives of Sphinx's Python domain.

Covers `entries`, for a module of public.py, `class_entry`, for the other pages, and `error_entry`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

from sphinx.pycode import ModuleAnalyzer

from asynctile.events import Event
from asynctile_docs.docstring import check, described, to_markdown
from asynctile_docs.public import CONSTRUCTED, MODULES, SHOWN

__all__ = ["class_entry", "entries", "error_entry", "full_names", "members_of"]


@cache
def full_names() -> dict[str, str]:
    """Return every public name of MODULES and of the error and event pages: the short one, and the one with its module."""
    found = {name: f"{module}.{name}" for module, names in MODULES.items() for name in names}
    for module in ("asynctile.errors", "asynctile.events"):
        for name in importlib.import_module(module).__all__:
            if inspect.isclass(getattr(importlib.import_module(module), name)):
                found[name] = f"{module}.{name}" if module == "asynctile.events" else f"asynctile.{name}"
    return found


def entries(module: str) -> str:
    """Return the Markdown of a module of MODULES. Raises Undocumented for public names without a docstring."""
    found, missing = list[str](), set[str]()
    for name in MODULES[module]:
        thing = getattr(importlib.import_module(module), name)
        found.append(f"### {name}")
        if inspect.isclass(thing):
            found.append(class_entry(f"{module}.{name}", thing, missing))
        else:
            found.append(_directive("function", f"{module}.{name}", thing, _doc(thing, f"{module}.{name}", missing)))
    check(missing)
    return "\n\n".join(found)


def error_entry(name: str) -> str:
    """Return the Markdown of one class of asynctile.errors."""
    thing, missing = getattr(importlib.import_module("asynctile.errors"), name), set[str]()
    found = class_entry(f"asynctile.{name}", thing, missing)
    check(missing)
    return found


def members_of(full: str, cls: type) -> tuple[str, ...]:
    """Return the names of the members that the page shows of a class, without the fields of a dataclass."""
    if full in SHOWN:
        return SHOWN[full]
    own = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    return tuple(name for name in vars(cls) if not name.startswith("_") and name not in own)


def class_entry(full: str, cls: type, missing: set[str]) -> str:
    """Return the Markdown of a class under the name `full`, with its members. Adds names without a description to `missing`."""
    made = full in CONSTRUCTED
    text = cls.__dict__.get("__doc__") or ""
    if not text or text.startswith(f"{cls.__name__}("):  # as dataclass writes it by itself
        missing.add(full)
    names = {*members_of(full, cls), *(inspect.signature(cls).parameters if made else ())}
    names |= {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    told = described(text, names)
    body = [to_markdown(text, names), *_bases(cls)]
    if is_dataclass(cls):
        body.append(_fields(full, cls, missing))
    for name in members_of(full, cls):
        member = inspect.getattr_static(cls, name, None)
        if member is None or not (callable(member) or isinstance(member, property | classmethod | staticmethod)):
            attribute = _attribute_doc(cls, name)
            if attribute:
                body.append(_fence("py:attribute", name, [], to_markdown(attribute), 4))
            elif name not in told and hasattr(cls, name):
                missing.add(f"{full}.{name}")
        elif not (name in told and isinstance(member, property) and not inspect.getdoc(member)):
            body.append(_member(full, name, member, missing))
    module, _, short = full.rpartition(".")
    head = short + (_parameters(cls) if made else "")
    kind = "exception" if issubclass(cls, Exception) else "class"
    return _fence(f"py:{kind}", head, [f":module: {module}", ":no-contents-entry:"], "\n\n".join(filter(None, body)), 5)


def _bases(cls: type) -> Iterator[str]:
    """Name the public base of a class; the pages of errors and events say by themselves what theirs are."""
    if not issubclass(cls, Exception | Event):
        names = [known[base.__name__] for base in cls.__mro__[1:] if base.__name__ in (known := full_names())]
        yield from (f"It has everything of {{py:class}}`~{name}`, too." for name in names[:1])


def _fields(full: str, cls: type, missing: set[str]) -> str:
    """Describe the fields of a dataclass: those with a text of their own one by one, the others in one list."""
    own = [field for field in fields(cls) if field.name in inspect.get_annotations(cls)]
    plain, described_ones = [], []
    for field in own:
        default = "" if field.default is MISSING else f" = {field.default!r}"
        text = _attribute_doc(cls, field.name)
        if text:
            options = [f":type: {_annotation(field.type)}", *([f":value: {field.default!r}"] if default else [])]
            described_ones.append(_fence("py:attribute", field.name, options, to_markdown(text), 4))
        else:
            plain.append(f"- `{field.name}: {_plain(field.type)}{default}`")
    return "\n\n".join([*(["Fields:\n\n" + "\n".join(plain)] if plain else []), *described_ones])


def _attribute_doc(cls: type, name: str) -> str:
    """Return the text beside an attribute in the source: a string below it, or a comment `#:` above it."""
    for base in cls.__mro__:
        if base.__module__.split(".")[0] != "asynctile":
            continue
        analyzer = ModuleAnalyzer.for_module(base.__module__)
        analyzer.analyze()
        if (base.__name__, name) in analyzer.attr_docs:
            return "\n".join(analyzer.attr_docs[base.__name__, name])
    return ""


def _member(full: str, name: str, member: Any, missing: set[str]) -> str:
    options = []
    if isinstance(member, property):
        annotation = member.fget.__annotations__.get("return", "")
        return _fence("py:property", name, [f":type: {_annotation(annotation)}"] if annotation else [],
                      to_markdown(_doc(member, f"{full}.{name}", missing)), 4)  # fmt: skip
    if isinstance(member, classmethod):
        options, member = [":classmethod:"], member.__func__
    function = inspect.unwrap(member)
    if inspect.iscoroutinefunction(function):
        options.append(":async:")
    text = _doc(function, f"{full}.{name}", missing)
    return _fence("py:method", name + _parameters(function), options,
                  to_markdown(text, inspect.signature(function).parameters), 4)  # fmt: skip


def _doc(thing: Any, full: str, missing: set[str]) -> str:
    text: str = thing.__doc__ or ""
    if not text:
        missing.add(full)
    return text


def _directive(kind: str, full: str, function: Any, text: str) -> str:
    module, _, short = full.rpartition(".")
    options = [f":module: {module}", ":no-contents-entry:", *([":async:"] if inspect.iscoroutinefunction(function) else [])]
    return _fence(f"py:{kind}", short + _parameters(function), options,
                  to_markdown(text, inspect.signature(function).parameters), 5)  # fmt: skip


def _fence(directive: str, signature: str, options: list[str], body: str, ticks: int) -> str:
    return "\n".join(["`" * ticks + f"{{{directive}}} {signature}", *options, "", body, "`" * ticks])


def _parameters(callable_: Any) -> str:
    """Return the parameters of a function or class, and what it returns, as Sphinx reads a signature."""
    signature = inspect.signature(callable_)
    shown, starred, positional = [], False, False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls") and not shown:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            shown.append("*")
        positional |= parameter.kind is parameter.POSITIONAL_ONLY
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        starred |= mark == "*"
        text = mark + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            spaced = parameter.annotation is not parameter.empty
            text += (" = " if spaced else "=") + _value(parameter.default)
        shown.append(text)
    back = signature.return_annotation
    returns = "" if inspect.isclass(callable_) or back is signature.empty else f" -> {_annotation(back)}"
    return f"({', '.join(shown)}){returns}"


def _value(default: Any) -> str:
    """Return a default as code; of a function its name, of a made object its class."""
    text = repr(default)
    return getattr(default, "__name__", type(default).__name__ + "()") if text.startswith("<") else text


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _annotation(annotation: Any) -> str:
    """Return an annotation in which the public names of asynctile are links, written short."""
    known = full_names()
    text = _plain(annotation).replace("typing.", "")
    return re.sub(r"(?<![\w.'\"])[A-Z]\w*", lambda found: f"~{known[found[0]]}" if found[0] in known else found[0], text)
