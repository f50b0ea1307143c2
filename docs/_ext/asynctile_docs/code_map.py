"""The map of the code: every folder and module with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from asynctile_docs.docstring import check, first_sentence, inline

__all__ = ["code_map", "modules"]

ROOT = Path(__file__).resolve().parents[3]
#: The folders of the map. Of the tests only folders that say something of themselves would be of use; they are left out.
FOLDERS = ("asynctile", "layers", "storage", "examples", "bench")
_SOURCES = (".py", ".cu", ".cuh")


def modules() -> Iterator[Path]:
    """Yield every source of the map, folder by folder. Links are not followed: layers and storage stand at the top."""
    for top in FOLDERS:
        for folder in sorted(path for path in (ROOT / top, *(ROOT / top).rglob("*")) if path.is_dir()):
            if not any(part.is_symlink() or part.name in ("__pycache__", "results") for part in (folder, *folder.parents)):
                yield from sorted(path for path in folder.iterdir() if path.suffix in _SOURCES)


def code_map() -> str:
    """Return the Markdown of the map. Raises Undocumented for modules without a docstring that are not empty."""
    found: list[str] = []
    missing, room = set[str](), None
    for path in modules():
        name, text = path.relative_to(ROOT), _told(path)
        if path.stat().st_size and not text:
            missing.add(str(name))
        if name.parent != room:
            room = name.parent
            level = "##" if len(room.parts) == 1 else "###"
            found.append(f"{level} {room}/\n")
            if path.name == "__init__.py" and text:
                found.append(f"{inline(first_sentence(text))}\n")
        if path.name != "__init__.py":
            found.append(f"- `{path.name}`: {inline(first_sentence(text))}")
        if found[-1].startswith("- "):
            found[-1] += "\n"
    check(missing)
    return re.sub(r"\n\n(?=- .*\n\n?- )", "\n", "\n".join(found))


def _told(path: Path) -> str:
    """Return a Python module's docstring, or the comment at the beginning of a CUDA source."""
    source = path.read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(source)) or ""
    lines = []
    for line in source.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").strip())
    return "\n".join(lines)
