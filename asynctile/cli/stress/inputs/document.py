"""Damage to the content of a file: JSON, JSON lines and safetensors headers that stay well-formed but make no sense.

Covers choosing a place in a document and what to put there. The document is written as text, since json cannot write all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from asynctile.cli.stress.inputs.site import Site

__all__ = ["DOCUMENT", "ODD", "is_document", "is_weights", "says_dtypes"]

#: The fields that name paths.
_PATHS = ("data", "model", "spill", "out", "trace", "tokenizer", "base_model_name_or_path")
_HOLE = "\x00hole"
_DEPTHS = (100, 1_000, 5_000, 100_000)
_NUMBERS = ("9" * 100, "9" * 400, "-" + "9" * 400, "9" * 5000, "1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity",
            "-1", "0", "1", "0.5", "1e308", "-0.0")  # fmt: skip
_ENORMOUS = (10**9, 10**12, 10**18, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64)
_OTHERS = ("null", "true", '""', '"text"', "[]", "{}", "0", "1.5", "[[]]", '{"a": 1}', "[null]", '"-1"', "[0, 0]",
           "[1, [2, [3]]]", '{"a": {"b": 1}}', "[" + "1," * 3000 + "1]")  # fmt: skip
_TEXTS = ("\x00", "a\x00b", "\ud800", "\x1b[2J\x1b]0;title\x07", "two\nlines", "\r", "\x9b2J", "../../x", "/dev/zero", ".",
          "..", "", "x" * 3000, "x" * 1_000_000, "\u202e", "\xff", "/", "~", "-", "--help")  # fmt: skip
_DTYPES = ("V0", "V8", "O", "S0", "U1", ">f4", "M8[s]", "f2,f2", "<u2", "float64", "i8", "bool", "F32", "F4", "F6_E2M3", "BF16",
           "I64", "?", "")  # fmt: skip
_SHAPES: tuple[list[int], ...] = ([1] * 300_000, [2] * 100_000, [10**18] * 5, [0, 10**30], [2**63], [], [0], [-1],
                                  [2**32, 2**32])  # fmt: skip
_BROKEN = ("01", "'x'", "[" * 5000)
#: Replacements of any value or name: JSON, Python's dialect of JSON, or neither.
ODD = (*_OTHERS, *_NUMBERS, *map(str, _ENORMOUS), *map(json.dumps, (*_TEXTS, *_DTYPES)), *_BROKEN)
MANY = 400_000


def is_document(site: Site) -> bool:
    """Return whether the file, its header or one of its lines is a JSON object that is not empty."""
    try:
        return _Document.of(site).value is not None
    except IndexError:
        return False  # no line is an object


def is_weights(site: Site) -> bool:
    return site.path.suffix == ".safetensors"


def says_dtypes(site: Site) -> bool:
    return is_weights(site) or site.path.name == "tokens.json"


@dataclass
class _Document:
    """The JSON part of a file, with the bytes of the file before and after that part."""

    before: bytes
    value: Any
    after: bytes
    header: bool

    @classmethod
    def of(cls, site: Site) -> _Document:
        content = site.path.read_bytes()
        if is_weights(site):
            end = 8 + int.from_bytes(content[:8], "little")
            return cls(b"", _object(content[8:end]), content[end:], True)
        if site.path.suffix == ".jsonl":
            lines = content.splitlines(keepends=True)
            at = site.chance.choice([n for n, line in enumerate(lines) if _object(line)])
            return cls(b"".join(lines[:at]), _object(lines[at]), b"\n" + b"".join(lines[at + 1:]), False)
        return cls(b"", _object(content), b"\n", False)

    def write(self, site: Site, raw: str = "") -> None:
        """Write the file. raw: the text to put into the hole."""
        text = json.dumps(self.value).replace(json.dumps(_HOLE), raw).encode()
        length = len(text).to_bytes(8, "little") if self.header else b""
        site.path.write_bytes(self.before + length + text + self.after)

    def fill(self, site: Site, raw: str, wanted: Callable[[Any, Any], bool] = lambda key, value: True) -> None:
        """Put `raw` in place of a `wanted` value, or of the whole document if there is none."""
        found = [slot for slot in _slots(self.value) if wanted(slot[1], slot[0][slot[1]])]
        if not found or (wanted(None, self.value) and site.chance.random() < 0.1):
            self.value = _HOLE
        else:
            holder, key = site.chance.choice(found)
            holder[key] = _HOLE
        self.write(site, raw)


def nested(site: Site) -> None:
    depth = site.chance.choice(_DEPTHS)
    opening, closing = site.chance.choice((("[", "]"), ('{"a":', "}")))
    _Document.of(site).fill(site, opening * depth + "1" + closing * depth)


def number(site: Site) -> None:
    """Put in a number of hundreds of digits, one that is none, or one out of the expected range."""
    _Document.of(site).fill(site, site.chance.choice(_NUMBERS), _is_number)


def enormous(site: Site) -> None:
    """Put in a size that would take all memory or all time."""
    _Document.of(site).fill(site, str(site.chance.choice(_ENORMOUS)), _is_number)


def missing(site: Site) -> None:
    document = _Document.of(site)
    holder, key = site.chance.choice(list(_slots(document.value)))
    del holder[key]
    document.write(site)


def retyped(site: Site) -> None:
    _Document.of(site).fill(site, site.chance.choice(_OTHERS))


def odd_value(site: Site) -> None:
    """Replace any value by anything, even by invalid JSON."""
    _Document.of(site).fill(site, site.chance.choice(ODD))


def odd_text(site: Site) -> None:
    _Document.of(site).fill(site, json.dumps(site.chance.choice(_TEXTS)), lambda key, value: isinstance(value, str))


def odd_name(site: Site) -> None:
    """Replace a random key, of any object in the file's JSON, by odd text, which need not be a string or even valid JSON.

    Only for files for which `is_document` is true; this is not checked.
    """
    document = _Document.of(site)
    holder, key = site.chance.choice([slot for slot in _slots(document.value) if isinstance(slot[0], dict)])
    holder[_HOLE] = holder.pop(key)
    document.write(site, site.chance.choice(ODD))


def longer(site: Site) -> None:
    """Repeat a list several times, or make a list of a value; then append anything."""
    document = _Document.of(site)
    slots = list(_slots(document.value))
    holder, key = site.chance.choice([slot for slot in slots if isinstance(slot[0][slot[1]], list)] or slots)
    values = holder[key] if isinstance(holder[key], list) else [holder[key]]
    holder[key] = [*islice(cycle(values), min(len(values) * site.chance.choice((2, 30, 1000)), MANY)), _HOLE]
    document.write(site, site.chance.choice(ODD))


def many(site: Site) -> None:
    """Add hundreds of thousands of entries, of the document's own kind if it lists tensors."""
    document = _Document.of(site)
    holders = [holder for holder in _holders(document.value) if isinstance(holder, dict)]
    holder = site.chance.choice(holders)
    if document.header:
        holder, entry = holders[0], '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    elif isinstance(holders[0].get("weight_map"), dict):
        holder, entry = holders[0]["weight_map"], None
    else:
        entry = "1"
    rows = (f'"k{i}":{entry or f"{chr(34)}s{i}.safetensors{chr(34)}"}' for i in range(MANY))
    holder[_HOLE] = 0
    text = json.dumps(document.value).replace(f"{json.dumps(_HOLE)}: 0", ",".join(rows)).encode()
    length = len(text).to_bytes(8, "little") if document.header else b""
    site.path.write_bytes(document.before + length + text + document.after)


def dtype(site: Site) -> None:
    _Document.of(site).fill(site, json.dumps(site.chance.choice(_DTYPES)), lambda key, value: key == "dtype")


def shape(site: Site) -> None:
    _Document.of(site).fill(site, json.dumps(site.chance.choice(_SHAPES)), lambda key, value: key == "shape")


def odd_length(site: Site) -> None:
    """Write a header length that is not the header's."""
    content = site.path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    said = site.chance.choice((0, 7, length - 1, length + 1, len(content), 2**40, 2**64 - 1))
    site.path.write_bytes(said.to_bytes(8, "little") + content[8:])


def planted(site: Site) -> None:
    """Put in a path that leads outside, where the document may name a path."""
    outside = str(site.outside)
    path = site.chance.choice((
        f"{outside}/planted", f"{outside}/secret.txt", f"{outside}/folder", f"{outside}/run", f"{outside}/pipe", "/dev/zero",
        "/dev/full", "../outside/planted",
    ))  # fmt: skip
    _Document.of(site).fill(site, json.dumps(path), _may_name_a_path)


DOCUMENT: dict[str, Callable[[Site], None]] = {
    "nested": nested, "odd number": number, "enormous number": enormous, "field missing": missing, "other type": retyped,
    "odd value": odd_value, "odd text": odd_text, "odd name": odd_name, "list repeated": longer, "400,000 entries": many,
    "odd dtype": dtype, "endless shape": shape, "odd length of header": odd_length, "planted path": planted,
}  # fmt: skip


def _object(text: bytes) -> dict[str, Any] | None:
    """Return a JSON object with at least one name; None if the text is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value else None


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    for holder in _holders(value):
        yield from ((holder, key) for key in (holder if isinstance(holder, dict) else range(len(holder))))


def _holders(value: Any) -> Iterator[Any]:
    """Yield every object and array of a document, outermost first."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


def _is_number(key: Any, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _may_name_a_path(key: Any, value: Any) -> bool:
    return key in _PATHS or str(value).endswith(".safetensors")
