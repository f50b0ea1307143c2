"""One case of damage: drawn for a copy of the prey, and done to it.

Covers which kinds of damage suit which file, and what is known about the outcome. The kinds are in content.py, document.py,
impostor.py and entries.py.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from asynctile.cli.stress.inputs.content import CONTENT
from asynctile.cli.stress.inputs.document import DOCUMENT, is_document, is_weights, says_dtypes
from asynctile.cli.stress.inputs.entries import ENTRIES
from asynctile.cli.stress.inputs.impostor import IMPOSTOR, KEPT_FROM
from asynctile.cli.stress.inputs.prey import NEWEST, Order
from asynctile.cli.stress.inputs.site import Site
from asynctile.storage.checksums import CHECKSUMS, checksum

__all__ = ["Damage", "damage", "spoil"]

Harm = Callable[[Site], None]
_CONTENT, _DOCUMENT, _IMPOSTOR = 0.3, 0.4, 0.3
_LARGE_NBYTES = 1 << 20
_MENDED = 0.5
#: Weight of older checkpoints and of files that nobody reads, which are damaged less often.
_SELDOM = 0.1


@dataclass(frozen=True)
class Damage:
    """One damage to one file.

    kind: of damage. file: its name in the table. checked: the name of a file in the newest checkpoint that no longer matches
    its checksum. kept_from: the damage only affects a process without root's rights.
    """

    kind: str
    file: str
    checked: str | None = None
    kept_from: bool = False


def damage(copy: Path, twin: Path, outside: Path, order: Order, chance: random.Random) -> Damage:
    """Draw a file or folder of `copy` and a damage for it, and do that damage.

    twin: the undamaged copy, in `outside`. order: the command that will read the copy.
    """
    path = _draw_path(copy, order, chance)
    site = Site(path=path, name=_name(path, copy), twin=twin / path.relative_to(copy), outside=outside, chance=chance)
    kind, do = _draw_kind(site, typed=path == copy)
    checked = _listed(site)
    before = path.read_bytes() if checked else b""
    do(site)
    if checked is None or not path.is_file() or path.is_symlink() or kind in IMPOSTOR or _bytes_of(path) == before:
        checked = None
    elif chance.random() < _MENDED and path.stat().st_size < 1 << 30:
        _mend_checksum(path)
        checked = None
    return Damage(kind, site.name, checked, kind in KEPT_FROM)


def spoil(site: Site) -> None:
    """Change a file in one to three places: its document or its bytes."""
    for _ in range(site.chance.choice((1, 1, 2, 3))):
        kinds = DOCUMENT if is_document(site) and site.chance.random() < _DOCUMENT / (_DOCUMENT + _CONTENT) else CONTENT
        _draw_from(kinds, site)[1](site)
        if site.path.stat().st_size > _LARGE_NBYTES:
            return  # another change would parse it again, for seconds


def _draw_path(copy: Path, order: Order, chance: random.Random) -> Path:
    paths = [copy, *sorted(copy.rglob("*"))]
    weights = [_SELDOM if _is_seldom_read(path.relative_to(copy), order) else 1.0 for path in paths]
    return chance.choices(paths, weights)[0]


def _is_seldom_read(inner: PurePath, order: Order) -> bool:
    """Return whether commands seldom read the path `inner` of the copy."""
    if inner.parts[:1] == ("checkpoints",) and not inner.as_posix().startswith(NEWEST) and len(inner.parts) > 1:
        return True
    return inner.name in ("loss.svg", "sample.txt", "summary.json") or not order.looks_at(inner)


def _name(path: Path, copy: Path) -> str:
    """Return a name of a file that makes a table of names easy to read."""
    inner = path.relative_to(copy).as_posix()
    if path.parent.parent.name == "checkpoints":
        return f"{'' if inner.startswith(NEWEST) else 'older '}checkpoint/{path.name}"
    if path.parent.name == "checkpoints":
        return f"{'' if inner.startswith(NEWEST) else 'older '}checkpoint/"
    return f"{copy.name}/" if inner == "." else f"{copy.name}/{inner}{'/' if path.is_dir() else ''}"


def _draw_kind(site: Site, *, typed: bool) -> tuple[str, Harm]:
    if site.path.is_dir():
        return _draw_from(site.chance.choice((ENTRIES, IMPOSTOR)), site, typed=typed)
    content = CONTENT | {"in several places": spoil}
    if is_document(site):
        kinds = site.chance.choices((content, DOCUMENT, IMPOSTOR), (_CONTENT, _DOCUMENT, _IMPOSTOR))[0]
    else:
        kinds = site.chance.choice((content, IMPOSTOR))
    return _draw_from(kinds, site, typed=typed)


def _draw_from(kinds: dict[str, Harm], site: Site, *, typed: bool = False) -> tuple[str, Harm]:
    return site.chance.choice([(kind, do) for kind, do in kinds.items() if _goes_with(kind, site, typed)])


def _goes_with(kind: str, site: Site, typed: bool) -> bool:
    name = site.path.name
    if kind.startswith("linked") and typed:
        return False  # a typed link is followed, also to write
    if kind == "hard link out":
        return site.path.is_file()  # folders have no hard links
    if kind == "odd dtype":
        return says_dtypes(site)
    if kind in ("endless shape", "odd length of header"):
        return is_weights(site)
    if kind == "planted path":
        return name in ("adapter_config.json", "run.json", "model.safetensors.index.json")
    if kind == "stretched to 1 TiB":
        # A text of a tebibyte is no damage: reading it just takes long.
        return site.path.suffix != ".txt"
    return True


def _listed(site: Site) -> str | None:
    """Return the name of a file that the newest checkpoint has a checksum of, else None."""
    record = site.path.parent / CHECKSUMS
    if not site.name.startswith("checkpoint/") or site.path.is_dir():
        return None
    return site.path.name if site.path.name in json.loads(record.read_bytes())["files"] else None


def _bytes_of(path: Path) -> bytes | None:
    """Return the content of a file, or None if it is too large to hold, and so certainly changed."""
    return path.read_bytes() if os.stat(path).st_size < 1 << 26 else None


def _mend_checksum(path: Path) -> None:
    """Correct the checksum, as an attacker would: checksums protect against disks and copies, not against intent."""
    record = path.parent / CHECKSUMS
    table = json.loads(record.read_bytes())
    table["files"][path.name] = checksum(path)
    record.write_text(json.dumps(table))
