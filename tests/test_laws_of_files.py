"""The laws of files of CONTRIBUTING.md, as far as sources show them: few modules write, and no data is run as code.

Whether links are followed is tested in tests/storage/test_inside.py and tests/cli/test_links.py, the content of run.json in
tests/cli/test_precedence.py, the limits of readers in tests/storage/test_input.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.test_house import SOURCES, called, tree_of

#: The modules that make, rename or remove names, and on whose word. Every other module goes through them.
WRITERS = {
    "asynctile.storage.inside": "in a folder held open",
    "asynctile.storage.beside": "in a folder held open",
    "asynctile.storage.folder": "the parents of a folder that a caller names",
    "asynctile.storage.tensors": "a file that a caller names, new and then renamed",
    "asynctile.storage.documents": "in a folder held open",
    "asynctile.storage.private": "folders in the user's cache, for its user alone",
    "asynctile.storage.container": "the spill file of a folder that a caller names",
    "asynctile.layers.tokens": "a folder that a caller names",
    "asynctile.measure.trace_file": "a file that a caller names, or one without a name",
    "asynctile.cli.run_folder": "the folder that --out names",
    "asynctile.cli.terminal": "nowhere: /dev/null",
}
CHANGES = {
    "rename", "renames", "unlink", "rmdir", "mkdir", "makedirs", "remove", "removedirs", "rmtree", "symlink", "link",
    "symlink_to", "hardlink_to", "touch", "write_text", "write_bytes", "mkdtemp", "mkstemp", "copytree", "copyfile", "move",
}  # fmt: skip
#: Methods that lists, sets, arrays and plans have under the same name.
PLAIN = {"remove", "move"}
#: Modules and calls that turn data into code.
RUN = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "runpy", "code"}
RUNS = {("", "eval"), ("", "exec"), ("", "compile"), ("", "__import__"), ("np", "load"), ("numpy", "load"), ("torch", "load")}


def calls(module: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree_of(module)) if isinstance(node, ast.Call))


def name_of(call: ast.Call) -> tuple[str, str]:
    """Return (the object it is called on, "?" if that is no plain name; the function)."""
    if not isinstance(call.func, ast.Attribute):
        return "", called(call)
    return call.func.value.id if isinstance(call.func.value, ast.Name) else "?", called(call)


def is_change(call: ast.Call) -> bool:
    on, name = name_of(call)
    if name == "open":
        modes = [word.value for word in (*call.args[1:2], *(item.value for item in call.keywords if item.arg == "mode"))
                 if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        flags = [node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)]
        return any(set(mode) & set("wax+") for mode in modes) or bool({"O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC"} & {*flags})
    if name == "replace":
        return on == "os"
    return name in CHANGES and (name not in PLAIN or on in ("os", "shutil"))


def test_only_the_listed_modules_make_rename_or_remove_files() -> None:
    found = {
        f"{module} line {call.lineno}: {ast.unparse(call)[:80]}"
        for module in SOURCES if module not in WRITERS and not module.startswith("asynctile.cli.stress")
        for call in calls(module) if is_change(call)
    }  # fmt: skip
    assert not found


def test_every_listed_writer_writes() -> None:
    assert [module for module in WRITERS if not any(map(is_change, calls(module)))] == []


def imported_by(module: str) -> Iterator[str]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def test_no_data_is_run_as_code() -> None:
    assert {module: found for module in SOURCES if (found := RUN.intersection(imported_by(module)))} == {}
    assert {module: name_of(call) for module in SOURCES for call in calls(module) if name_of(call) in RUNS} == {}
