"""The code on every page: Python runs as it stands, commands are read by the program's own parser, few blocks are left out."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from asynctile import __version__
from asynctile.cli import join_negative_values
from asynctile.cli.arguments import COMMANDS, build_parser
from tests.docs.pages import PAGES, ROOT, blocks, calls
from tests.docs.running import Runner, is_run, script
from tests.laws import law

#: Blocks of Python that no test runs. A fragment is written as one, not marked; raise this with a reason or not at all.
MOST_NOT_RUN = 8
#: Pages whose code takes long, as laws.
LONG = ("stress-memory-tiers.md", "embed-in-a-service.md")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def compiled() -> None:
    """Kernels and loops are on the disk before a page needs them: compiling is not counted here (tests/conftest.py)."""
    for module in ("asynctile.engine", "asynctile.layers.model"):
        import_module(module)
    import_module("asynctile.kernels.cpu").warm()


@pytest.fixture(scope="module")
def runner(compiled: None) -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


RUN = [page for page in PAGES if any(map(is_run, blocks(page)))]


@pytest.mark.parametrize("page", [law(page) if page.name in LONG else page for page in RUN], ids=name_of)
def test_a_page_runs_as_it_stands(page: Path, tmp_path: Path, runner: Runner) -> None:
    done = runner.run(page, tmp_path)
    where = re.findall(rf'{re.escape(str(page))}"?(?:, line |:)(\d+)', done.stderr)
    assert done.returncode == 0, f"{name_of(page)}:{where[-1] if where else '?'} failed:\n{done.stdout}{done.stderr}"


def test_no_block_of_python_is_cut() -> None:
    """What is not run is at least Python."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                try:
                    ast.parse(block.text)
                except SyntaxError as error:
                    pytest.fail(f"{name_of(page)}:{block.line - 1 + (error.lineno or 1)} is no Python: {error.msg}")


def test_few_blocks_are_left_out() -> None:
    left_out = [block.place for page in PAGES for block in blocks(page) if block.language == "python" and block.not_run]
    assert len(left_out) <= MOST_NOT_RUN, f"{len(left_out)} blocks are not run, at most {MOST_NOT_RUN} may be: {left_out}"


def test_a_block_that_another_test_runs_names_a_test_that_reads_its_page() -> None:
    for page in PAGES:
        for test in {block.elsewhere for block in blocks(page) if block.elsewhere}:
            assert page.name in (ROOT / test).read_text(), f"{name_of(page)} names {test}, which does not read that page"


@pytest.mark.parametrize("page", [page for page in PAGES if any(any(calls(block)) for block in blocks(page))], ids=name_of)
def test_commands_are_what_the_parser_reads(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser(__version__)
    for block in blocks(page):
        for line, words in calls(block):
            try:
                unknown = parser.parse_known_args(join_negative_values(words))[1]
            except SystemExit as error:
                if error.code:
                    pytest.fail(f"{name_of(page)}:{line}: asynctile {' '.join(words)}: {capsys.readouterr().err.strip()}")
                unknown = []
            assert not unknown, f"{name_of(page)}:{line}: there is no {unknown[0]}: asynctile {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_in_the_text_are_there(page: Path) -> None:
    """Code in a sentence that begins with `asynctile COMMAND` names options of that command."""
    if page.name == "CHANGELOG.md":
        return  # it tells of options that are gone
    parser = build_parser(__version__)
    for words in (match.split() for match in re.findall(r"`asynctile ([^`]+)`", page.read_text())):
        if words[0] in COMMANDS:
            flags = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}
            assert flags <= set(parser.flags_of(words[0])), f"{name_of(page)}: asynctile {' '.join(words)}"


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_lines_of_a_script_are_those_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: Runner) -> None:
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    page = write(
        tmp_path,
        "# T\n\n```python\nx = 1\n```\n\n- a list\n\n  ```python\n  y = x\n  ```\n\n<!-- not run: a fragment -->\n"
        "```python\nnowhere()\n```\n\n```python\nraise KeyError(y)\n```\n",
    )
    assert script(blocks(page)).splitlines()[3::6][:2] == ["x = 1", "y = x"]
    assert "nowhere" not in script(blocks(page))
    done = runner.run(page, tmp_path)
    assert done.returncode == 1
    assert f'"{page}", line 19' in done.stderr
    assert "KeyError: 1" in done.stderr


def test_a_page_that_takes_too_long_is_ended_and_the_next_one_runs(tmp_path: Path, runner: Runner) -> None:
    slow = write(tmp_path, "```python\nimport time\nprint('begun', flush=True)\ntime.sleep(100)\n```\n")
    (tmp_path / "slow").mkdir()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        runner.run(slow, tmp_path / "slow", timeout=0.5)
    assert caught.value.output == b"begun\n"
    (tmp_path / "next").mkdir()
    quick = write(tmp_path / "next", "```python\nprint('whole')\n```\n")
    assert runner.run(quick, tmp_path / "next").stdout == "whole\n"


def test_marked_consoles_run_among_the_python_with_their_options(tmp_path: Path, runner: Runner) -> None:
    page = write(
        tmp_path,
        "```console\n$ never\n```\n\n<!-- run with --version -->\n```console\n$ asynctile \\\n    info > out\nanything\n```\n"
        "```python\nprint(open('out').read())\n```\n<!-- run -->\n```console\n$ false\n```\n",
    )
    done = runner.run(page, tmp_path)
    assert done.returncode == 1
    assert f"{page}:7: exit status 2 of: asynctile     info --version > out" in done.stderr


def test_calls_are_found_where_a_shell_finds_them(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        "```console\n$ A=1 asynctile train --out 'a b' && asynctile info | head  # asynctile\nasynctile output --not\n```\n\n"
        "    asynctile plan --tile 4\n    ls\n\n```text\nasynctile DIR\n```\n",
    )
    found = [call for block in blocks(page) for call in calls(block)]
    assert found == [(2, ["train", "--out", "a b"]), (2, ["info"]), (6, ["plan", "--tile", "4"])]
