"""House rules, checked by reading the sources: floors and their imports, the length of files, names of tests, one version.

Reads every module's syntax tree and imports nothing of asynctile but its version. What modules do is tested elsewhere.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: From bottom to top: a module imports from its own floor and from the floors below. `system` imports nothing but errors;
#: `engine` has the modules that users open, `ray` runs the program of `cli`.
FLOORS = (
    "storage", "system", "nodes", "program", "ops", "kernels", "schedule", "streams", "device", "nccl", "memory", "loop",
    "launch", "execute", "measure", "engine", "layers", "cli", "ray",
)  # fmt: skip
#: The floor of each module directly in asynctile/.
AT_THE_TOP = {
    "asynctile": "engine", "asynctile.__main__": "cli", "asynctile.blas_threads": "system", "asynctile.callbacks": "layers",
    "asynctile.collector": "system",
    "asynctile.engine": "engine", "asynctile.errors": "system", "asynctile.events": "system", "asynctile.runtime": "engine",
    "asynctile.hub": "streams", "asynctile.interpreter": "system", "asynctile.lent": "engine", "asynctile.lifetime": "engine",
    "asynctile.metrics": "engine", "asynctile.on_demand": "system", "asynctile.share": "engine", "asynctile.starting": "system",
    "asynctile.threads": "system", "asynctile.traced": "engine",
}  # fmt: skip
#: Floors whose decisions are functions of the program: no clock, no thread, no loop, no file.
PURE = ("program", "schedule")
#: Compiles some of these decisions: it finds a folder for machine code and reads sources, and decides nothing itself.
COMPILER = {"asynctile.kernels.cpu.jit"}
#: Modules that wait, run work side by side, or tell the time.
NOT_PURE = {
    "aiofiles", "asyncio", "concurrent", "ctypes", "mmap", "multiprocessing", "os", "pathlib", "psutil", "queue", "random",
    "select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uvloop",
}  # fmt: skip
#: The names that a module which touches no bytes may use of NumPy: types.
TYPES = {"dtype", "float32", "uint16"}
#: Modules of pure floors that compute with large arrays of offsets and times; they touch no bytes of tiles either.
ARITHMETIC = {"asynctile.schedule.state", "asynctile.schedule.uses", "asynctile.schedule.walk"}
#: Lines of a file, unless its docstring says why it is longer.
LONGEST = 500
#: A test's name has fewer characters.
LONGEST_NAME = 90
#: Places where tests reach a private member of another object, by file. Each says beside it what would be lost without it.
REACHED = {
    "tests/device/test_cublas.py": 1, "tests/docs/test_reference.py": 1, "tests/inside_engine.py": 2,
    "tests/layers/replaying.py": 1, "tests/reference/test_sampling.py": 1,
}  # fmt: skip
#: Names that are public in spite of an underscore: those of named tuples, and os._exit.
PUBLIC_ANYWAY = {"_asdict", "_exit", "_fields", "_make", "_replace"}
#: Names that more than one class may have.
SHARED_NAMES = {"Block", "Recording"}


def floor_of(module: str) -> str:
    """Return the floor of a module such as `asynctile.layers.mlp`."""
    return AT_THE_TOP.get(module) or module.split(".")[1]


def sources() -> dict[str, Path]:
    """Return the file of every module of the package by its dotted name, without following links."""
    found = {}
    for name, folder in (("asynctile", "asynctile"), ("asynctile.layers", "layers"), ("asynctile.storage", "storage")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "asynctile" and inner[0] in ("layers", "storage"):
                continue  # the links layers and storage
            found[".".join((name, *inner)).removesuffix(".__init__")] = path
    return found


SOURCES = sources()


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(SOURCES[module].read_text())


TESTS = sorted((ROOT / "tests").rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a source imports, deferred and type-only imports included; `from a import b` yields `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def imports_of(module: str) -> set[str]:
    """Return the modules of asynctile that a module imports."""
    names = {name for name in imported(tree_of(module)) if name.split(".")[0] == "asynctile"}
    # `from asynctile import cli` names a module, `from asynctile import Engine` does not.
    return {name if name in SOURCES else name.rpartition(".")[0] for name in names}


def from_above(module: str, names: Iterable[str]) -> list[str]:
    """Return the modules among `names` that stand on a higher floor than `module`."""
    rank = FLOORS.index(floor_of(module))
    return sorted(name for name in names if FLOORS.index(floor_of(name)) > rank)


def all_below(module: str) -> set[str]:
    """Return a module and everything that it imports, directly or indirectly, except COMPILER."""
    found, ahead = {module}, [module]
    while ahead:
        new = imports_of(ahead.pop()) - found - COMPILER
        found |= new
        ahead += new
    return found


def impure(tree: ast.AST) -> list[str]:
    """Return the parts of a source that belong to asyncio, threads, the clock or files."""
    found = [name for name in imported(tree) if name.split(".")[0] in NOT_PURE]
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            found.append(f"{type(node).__name__} in line {node.lineno}")
        elif isinstance(node, ast.Name) and node.id == "open":
            found.append(f"open in line {node.lineno}")
    return found


def bytes_touched(tree: ast.AST) -> list[str]:
    """Return the names that a source uses of NumPy beyond types, and every mention of a tile's array or a slot's memory."""
    found = [name for name in imported(tree) if name.split(".")[0] == "numpy" and name != "numpy"]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        of_numpy = isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy")
        if (of_numpy and node.attr not in TYPES) or (not of_numpy and node.attr in ("array", "memory")):
            found.append(f"{ast.unparse(node)} in line {node.lineno}")
    return found


def test_the_sources_are_all_seen() -> None:
    assert {"asynctile", "asynctile.layers", "asynctile.storage", "asynctile.cli"} <= set(SOURCES)


def test_every_module_stands_on_a_floor() -> None:
    astray = {module for module in SOURCES if floor_of(module) not in FLOORS}
    assert not astray, f"give each a floor in FLOORS, or in AT_THE_TOP: {sorted(astray)}"
    assert {floor_of(module) for module in SOURCES} == {*FLOORS}
    assert AT_THE_TOP.keys() == {name for name, path in SOURCES.items() if path.parent == ROOT / "asynctile"}


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_one_way(floor: str) -> None:
    modules = [module for module in SOURCES if floor_of(module) == floor]
    wrong = {module: found for module in modules if (found := from_above(module, imports_of(module)))}
    assert modules and not wrong, f"{floor} imports from above: {wrong}; the order is {' <- '.join(FLOORS)}"


@pytest.mark.parametrize("floor", PURE)
def test_a_pure_floor_runs_without_a_loop_a_thread_a_clock_or_a_file(floor: str) -> None:
    """Everything that the floor imports counts too, such as storage/ledger.py. The __init__ of a package above does not."""
    below = set().union(*(all_below(module) for module in SOURCES if floor_of(module) == floor))
    wrong = {module: found for module in sorted(below) if (found := impure(tree_of(module)))}
    assert not wrong, f"{floor}/ is pure, and with it all that it imports: {wrong}"


@pytest.mark.parametrize("floor", PURE)
def test_a_pure_floor_touches_no_bytes(floor: str) -> None:
    """A pure module may name NumPy's types. It makes and reads no array and asks no tile or slot for one."""
    modules = [module for module in SOURCES.keys() - ARITHMETIC if floor_of(module) == floor]
    wrong = {module: found for module in modules if (found := bytes_touched(tree_of(module)))}
    assert modules and not wrong


def test_the_rules_for_floors_find_violations() -> None:
    assert from_above("asynctile.schedule.walk", ["asynctile.streams.event"]) == ["asynctile.streams.event"]
    assert from_above("asynctile.launch.lane", ["asynctile", "asynctile.memory.tier"]) == ["asynctile"]
    assert from_above("asynctile.storage.tile", ["asynctile.errors"]) and not from_above("asynctile.ray", SOURCES)
    for source in ("import asyncio", "import os.path", "from time import sleep", "async def f(): pass", "with open('x'): pass"):
        assert impure(ast.parse(source)), source
    for source in ("np.zeros(3)", "from numpy import zeros", "residency.array", "pool.memory", "import numpy.random"):
        assert bytes_touched(ast.parse(source)), source
    assert not bytes_touched(ast.parse("import numpy as np\ndtype = np.float32"))
    assert "asynctile.storage.tile" in all_below("asynctile.schedule.walk")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports deferred into a function or placed under TYPE_CHECKING count: they only hide a circle."""
    below = {module: imports_of(module) - {module} for module in SOURCES}
    try:
        tuple(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(f"{' <- '.join(error.args[1])}: move what both need into a module that both import, or hand it over")


def test_imports_are_absolute() -> None:
    """Modules import by the package's name, neither by dots nor by the name that a folder has in a checkout."""
    for module in SOURCES:
        for node in ast.walk(tree_of(module)):
            assert not isinstance(node, ast.ImportFrom) or not node.level, f"{module} line {node.lineno}"
        assert not {name.split(".")[0] for name in imported(tree_of(module))} & {"layers", "storage"}, module


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
    paths = [*SOURCES.values(), *(path for folder in ("tests", "bench", "examples") for path in (ROOT / folder).rglob("*.py"))]
    for path in paths:
        text = path.read_text()
        lines = text.count("\n")
        assert lines <= LONGEST or "long because" in (ast.get_docstring(ast.parse(text)) or "").lower(), (
            f"{path.relative_to(ROOT)} has {lines} lines; above {LONGEST}, its docstring says `Long because ...`"
        )


def missing_files(text: str, there: set[str]) -> list[str]:
    """Return the Python files that a text names and that are not in `there`, matched by the end of their path."""
    named = re.findall(r"(?<![\w/.{}<>*-])(?:[a-z_]\w*/)*[a-z_]\w*\.py\b", text)
    return [name for name in named if not any(path.endswith(f"/{name}") for path in there)]


def test_files_named_in_sources_and_guides_exist() -> None:
    """A file that moves takes its mentions along."""
    folders = ("asynctile", "layers", "storage", "tests", "bench", "examples", "docs/_ext")
    paths = [path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    there = {f"/{path}" for path in paths} | {f"/asynctile/{path}" for path in paths}
    for path in [*SOURCES.values(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        missing = missing_files(path.read_text(), there)
        assert not missing, f"{path.relative_to(ROOT)} speaks of {missing}, which are nowhere"
    assert missing_files("see launch/lane.py and nowhere.py", there) == ["nowhere.py"]


def test_each_folder_of_modules_is_a_package() -> None:
    """setuptools silently leaves a folder without __init__.py out of the wheel."""
    without = {path.parent for path in SOURCES.values() if not (path.parent / "__init__.py").exists()}
    assert not without


def test_a_class_name_is_used_once() -> None:
    counts = Counter(node.name for module in SOURCES for node in ast.walk(tree_of(module)) if isinstance(node, ast.ClassDef))
    assert {name for name, count in counts.items() if count > 1} <= SHARED_NAMES


def called(call: ast.Call) -> str:
    """Return the last part of the name that is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def private_reached(tree: ast.AST) -> list[str]:
    """Return the private members that a test reaches on other objects than its own, also by import and by setattr."""
    own = {"self", "cls", *(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))}
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in own):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and called(node).endswith(("getattr", "setattr", "delattr")):
            texts = [given.value for given in node.args if isinstance(given, ast.Constant) and isinstance(given.value, str)]
            names = [text.rpartition(".")[2] for text in texts]
        found |= {(node.lineno, name) for name in names if re.match("_[^_]", name) and name not in PUBLIC_ANYWAY}
    return [f"{name} in line {line}" for line, name in sorted(found)]


def test_tests_reach_private_members_only_in_these_places() -> None:
    reached = {path.relative_to(ROOT).as_posix(): private_reached(ast.parse(path.read_text())) for path in TESTS}
    counts = {path: len(found) for path, found in reached.items() if found}
    grown = {path: reached[path] for path, count in counts.items() if count > REACHED.get(path, 0)}
    assert not grown, f"ask the public face or the room's contract, or make the name part of it: {grown}"
    assert counts == REACHED, "there are fewer places now: lower REACHED"


def test_the_rule_for_private_members_finds_violations() -> None:
    for source in ("a._b", "from a import _b", "patch.setattr(a, '_b', 1)", "patch.setattr('a.b._c', 1)", "getattr(a, '_b')"):
        assert private_reached(ast.parse(source)), source
    assert not private_reached(ast.parse("class A:\n    def f(self): return self._b, A._c, row._replace(d=1), self.__doc__"))


def test_names_of_tests_have_fewer_than_90_characters() -> None:
    for path in TESTS:
        names = re.findall(r"def (test_\w+)", path.read_text())
        long = [name for name in names if len(name) >= LONGEST_NAME]
        assert not long, f"{path.relative_to(ROOT)} has tests with names of {LONGEST_NAME} or more characters: {long}"


def test_the_package_and_the_project_have_one_version() -> None:
    import asynctile

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == asynctile.__version__
