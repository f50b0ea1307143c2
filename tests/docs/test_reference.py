"""The reference is complete: every public name, option, event, metric and error is on the page that it belongs to."""

from __future__ import annotations

import inspect
import re
from argparse import SUPPRESS
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from asynctile_docs import api, code_map, commands, metrics
from asynctile_docs.docstring import Undocumented, check, described, first_sentence, to_markdown
from asynctile_docs.generated import expand
from asynctile_docs.links import targets
from asynctile_docs.public import CONSTRUCTED, INTERNAL, MODULES, SHOWN

import asynctile
import asynctile.events
import asynctile.layers
from asynctile import __version__
from asynctile.cli.arguments import COMMANDS, build_parser
from asynctile.cli.option import flag, options_of
from asynctile.cli.options import Options
from tests.docs.pages import DOCS, ROOT


def page(name: str) -> str:
    return expand((DOCS / "reference" / f"{name}.md").read_text())


def found(full: str) -> Any:
    module, _, name = full.rpartition(".")
    return getattr(import_module(module), name)


THINGS = {full: found(full) for full in api.full_names().values()}
CLASSES = {full for full, cls in THINGS.items() if inspect.isclass(cls) and not issubclass(cls, BaseException)}


def test_the_api_page_names_what_packages_name() -> None:
    errors = set(import_module("asynctile.errors").__all__)
    assert set(MODULES["asynctile"]) == set(asynctile.__all__) - errors
    assert set(MODULES["asynctile.layers"]) == set(asynctile.layers.__all__)
    assert set(MODULES["asynctile.callbacks"]) <= set(import_module("asynctile.callbacks").__all__)
    assert set(MODULES["asynctile.nodes"]) == set(import_module("asynctile.nodes").__all__)
    assert set(MODULES["asynctile.metrics"]) == set(import_module("asynctile.metrics").__all__)
    text = page("api")
    for module, names in MODULES.items():
        for name in names:
            assert re.search(rf"^`+{{py:(class|function)}} {name}\b", text, re.MULTILINE), f"{module}.{name} is not on the page"


def test_what_the_page_is_to_show_of_a_class_is_there() -> None:
    text = page("api")
    assert SHOWN.keys() | CONSTRUCTED <= CLASSES
    for full, names in SHOWN.items():
        cls = found(full)
        body = text.partition(f"\n### {full.rpartition('.')[2]}\n")[2].partition("\n### ")[0]
        for name in names:
            if hasattr(cls, name):
                shown = re.search(rf"{{py:(method|property|attribute)}} {name}\b", body) or f"`{name}`" in body
                assert shown, f"{full}.{name} is not on the page"
            made = name in dir(cls) or f"self.{name}" in "".join(map(inspect.getsource, cls.__mro__[:-1]))
            assert made, f"there is no {full}.{name}"


@pytest.mark.parametrize("full", sorted(CLASSES))
def test_a_public_class_has_no_other_names(full: str) -> None:
    cls = found(full)
    names = {name for name in dir(cls) if not name.startswith("_")}
    names -= {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    base = {"asynctile.Engine": "asynctile.Share", "asynctile.layers.GPT2": "asynctile.layers.Model"}.get(full)
    known = {*api.members_of(full, cls), *(() if base is None else SHOWN[base])}
    known |= {"vocab_size", "fingerprint"} if full == "asynctile.layers.ByteTokenizer" else set()
    assert names - known == set(INTERNAL.get(full, ()))


def test_the_commands_page_has_every_option_with_its_help_and_group() -> None:
    text, parser = page("commands"), build_parser(__version__)
    for command in COMMANDS:
        part = text.partition(f"\n## asynctile {command}\n")[2].partition("\n## ")[0]
        assert part, f"{command} is not on the page"
        for action in parser.commands[command]._actions:  # argparse has no public list of options
            for name in set(action.option_strings) - {"-h", "--help"}:
                named = f"`{action.option_strings[0]}`" if action.help is SUPPRESS else rf"^`+{{option}} (.+, )?{name}\b"
                assert re.search(named, part, re.MULTILINE), f"{command} {name} is not on the page"
    train = text.partition("\n## asynctile train\n")[2].partition("\n## ")[0]
    groups = re.split(r"\n### train: ", train)
    for name, entry in options_of(Options).items():
        (group,) = (group for group in groups if re.search(rf"{{option}} {flag(name)}\b", group))
        assert group.startswith(entry.group.partition(" (")[0]), f"{flag(name)} is in another group"
        told, shown = (set(re.findall(r"\w+", text.lower())) for text in (entry.help.partition("(default")[0], group))
        assert told <= shown, f"the help of {flag(name)} is not whole"


def test_the_events_page_has_every_event_with_its_fields_and_every_constant() -> None:
    text = page("events")
    for name in asynctile.events.__all__:
        thing = getattr(asynctile.events, name)
        if not inspect.isclass(thing):
            assert f"`{name}` = `'{thing}'`" in text
            continue
        part = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for field in fields(thing):
            if thing is asynctile.events.Event or field.name not in asynctile.events.Event.__dataclass_fields__:
                shown = re.search(rf"`{field.name}: |{{py:attribute}} {field.name}$", part, re.MULTILINE)
                assert shown, f"{name}.{field.name} is not on the page"


def test_the_metrics_page_has_what_a_scrape_of_an_engine_has() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    registry.register(type("", (), {"collect": lambda _: metrics.families()})())
    scraped = re.findall(r"^(\w+)(?:{| )", prometheus.generate_latest(registry).decode(), re.MULTILINE)
    text = page("metrics")
    assert len(set(scraped)) > 20
    assert [name for name in set(scraped) if f"`{name}`" not in text] == []
    plain = text.replace("\\", "").replace("`", "")
    assert [family.name for family in metrics.families() if family.documentation not in plain] == []


def test_the_errors_page_has_every_error_and_what_to_do() -> None:
    text = page("errors")
    for name in import_module("asynctile.errors").__all__:
        part = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert f"{{py:exception}} {name}\n" in part
        assert "\nWhat to do\n: " in part
        indent = "    " * (len(found(f"asynctile.{name}").__mro__) - len(Exception.__mro__) - 1)
        in_place = re.search(rf"^[ │]{{{len(indent)}}}[├└]── {name}\b", text, re.MULTILINE)
        assert in_place, f"{name} is at another place of the tree"


def test_the_map_has_every_module() -> None:
    text = page("map")
    for folder in ("asynctile", "layers", "storage"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == "__init__.py" or any(part.is_symlink() for part in path.parents):
                continue
            part = text.partition(f"# {path.parent.relative_to(ROOT)}/\n")[2].partition("\n#")[0]
            assert f"- `{path.name}`: " in part, f"{path.relative_to(ROOT)} is not on the map"


def test_what_is_not_documented_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asynctile.Engine.events, "__doc__", None)
    with pytest.raises(Undocumented, match=r"1 without .* asynctile\.Engine\.events;"):
        page("api")
    built = build_parser(__version__)
    built.commands["stress"].add_argument("--silent")
    monkeypatch.setattr(commands, "build_parser", lambda _: built)
    with pytest.raises(Undocumented, match="asynctile stress --silent"):
        page("commands")
    (tmp_path / "asynctile").mkdir()
    (tmp_path / "asynctile" / "engine.py").write_text("told = None\n")
    monkeypatch.setattr(code_map, "ROOT", tmp_path)
    with pytest.raises(Undocumented, match=r"asynctile/engine\.py"):
        page("map")
    monkeypatch.setattr(asynctile.events.Opened, "__doc__", None)
    with pytest.raises(Undocumented, match=r"asynctile\.events\.Opened"):
        page("events")


def test_names_in_code_are_links() -> None:
    known = targets()
    assert known["Trainer.save"] == known["trainer.save"] == ("py", "obj", "asynctile.layers.Trainer.save")
    assert known["--lr"] == ("std", "option", "asynctile-train --lr")
    assert known["engine.statistics"] == ("py", "obj", "asynctile.Share.statistics")


def test_docstrings_as_markdown() -> None:
    text = "Return *it*.\n\n    as it is\n    [x]\n\nsize: in bytes. other_size, name: of <b> by --min-lr. ValueError if None."
    assert to_markdown(text, ("size", "other_size", "name")) == (
        "Return \\*it\\*.\n\n```text\nas it is\n[x]\n```\n\n"
        "`size`: in bytes.\\\n`other_size`, `name`: of \\<b> by `--min-lr`. `ValueError` if `None`."
    )
    assert described(text, ("size", "name", "it")) == {"size", "name"}
    assert first_sentence("Read e.g.\nthis. And that.\n\nMore.") == "Read e.g. this."
    check([])


def test_the_pages_that_ask_for_generated_text_are_these(tmp_path: Path) -> None:
    asked = {path.name for path in DOCS.rglob("*.md") if "<!-- generated:" in path.read_text() and "_build" not in path.parts}
    assert asked == {"api.md", "commands.md", "errors.md", "events.md", "map.md", "metrics.md"}
