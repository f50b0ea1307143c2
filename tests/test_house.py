"""The rules of the house, held by reading the sources: who may import whom, how long a file may be, one version.

Reads every module's syntax tree and imports nothing of asynctile but its version. What modules do is tested elsewhere.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: From below to above: a package imports itself and those below it.
ORDER = ("storage", "engine", "layers", "cli")
LONGEST = 400


def package_of(module: str) -> str:
    """Which of ORDER a module such as `asynctile.layers.mlp` belongs to."""
    part = (module.split(".") + [""])[1]
    if part in ("layers", "storage", "cli"):
        return part
    return "cli" if part == "__main__" else "engine"


def sources() -> dict[str, Path]:
    """Every module of the package: its dotted name and its file, through no link."""
    found = {}
    for name, folder in (("asynctile", "asynctile"), ("asynctile.layers", "layers"), ("asynctile.storage", "storage")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "asynctile" and inner[0] in ("layers", "storage"):
                continue  # the links
            found[".".join((name, *inner)).removesuffix(".__init__")] = path
    return found


SOURCES = sources()


def imports_of(module: str, path: Path) -> Iterator[str]:
    """The modules of asynctile that a source names in any import, deferred ones included."""
    base = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "asynctile")
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                above = base.split(".")[: len(base.split(".")) - node.level + 1]
                origin = ".".join(above + ([node.module] if node.module else []))
            else:
                origin = node.module or ""
            if origin.split(".")[0] == "asynctile":
                # `from asynctile import cli` names a module below, `from asynctile import Engine` does not.
                inner = [f"{origin}.{alias.name}" for alias in node.names]
                yield from (name if name in SOURCES else origin for name in inner)


def test_the_sources_are_all_seen() -> None:
    assert {"asynctile", "asynctile.layers", "asynctile.storage", "asynctile.cli"} <= set(SOURCES)


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_run_one_way(module: str) -> None:
    rank = ORDER.index(package_of(module))
    wrong = [name for name in imports_of(module, SOURCES[module]) if ORDER.index(package_of(name)) > rank]
    assert not wrong, f"{module} ({ORDER[rank]}) imports from above: {wrong}; the order is {' <- '.join(ORDER)}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports that are deferred into a function or stand under TYPE_CHECKING count: they only hide a circle."""
    below = {module: {*imports_of(module, path)} & {*SOURCES} - {module} for module, path in SOURCES.items()}
    try:
        tuple(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(f"{' <- '.join(error.args[1])}: move what both need into a module that both import, or hand it over")


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_no_import_by_the_folders_name(module: str) -> None:
    for node in ast.walk(ast.parse(SOURCES[module].read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        assert not {name.split(".")[0] for name in names} & {"layers", "storage"}, f"{module} line {node.lineno}"


@pytest.mark.parametrize("folder", ["layers", "storage"])
def test_a_folder_is_not_importable_by_its_own_name(folder: str) -> None:
    command = [sys.executable, "-c", f"import {folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError")
    assert f"import asynctile.{folder}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("link", ["layers", "storage"])
def test_the_links_lead_to_the_folders(link: str) -> None:
    assert (ROOT / "asynctile" / link).resolve() == ROOT / link


def test_a_long_file_says_why() -> None:
    paths = [*SOURCES.values(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    for path in paths:
        text = path.read_text()
        lines = text.count("\n")
        docstring = ast.get_docstring(ast.parse(text)) or ""
        assert lines <= LONGEST or "long because" in docstring.lower(), (
            f"{path.relative_to(ROOT)} has {lines} lines; above {LONGEST}, its docstring says `Long because ...`")


def test_each_folder_of_modules_is_a_package() -> None:
    """setuptools leaves a folder without __init__.py out of the wheel, silently."""
    without = {path.parent for path in SOURCES.values() if not (path.parent / "__init__.py").exists()}
    assert not without


def test_one_version() -> None:
    import asynctile

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == asynctile.__version__
