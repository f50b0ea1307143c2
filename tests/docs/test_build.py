"""`make docs`: the site builds without a warning and without the network, and is whole.

`make laws` runs these tests, because Sphinx takes long, and `make docs` finds most mistakes on a page alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, SITE

pytestmark = pytest.mark.laws


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the command of the Makefile into a folder of its own."""
    (line,) = re.findall(r"^\t\$\(BIN\)/python (-m sphinx .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    built = tmp_path_factory.mktemp("site")
    words = line.replace("docs/_build", str(built)).split()
    # A proxy that is not there: whatever asked the network would fail.
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, env=nowhere, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return built / "html"


def test_every_page_is_built(site: Path) -> None:
    for page in SITE:
        assert (site / page.relative_to(DOCS)).with_suffix(".html").stat().st_size > 0


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No font, script, style or picture comes from another host, in any page or style."""
    fetched = re.compile(
        r"""(?:<(?:script|img|iframe)[^>]*\ssrc=|<link(?![^>]*rel="(?:canonical|author)")[^>]*\shref=|url\(|@import )"""
        r"""["']?(?:https?:)?//"""
    )
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = fetched.search(path.read_text())
        assert found is None, f"{path.relative_to(site)}: {found and found[0]}"


def test_internal_names_are_on_no_page(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text()
    ids = set(re.findall(r'id="(asynctile\.[\w.]+)"', text))
    assert {"asynctile.Engine.share", "asynctile.layers.Model.create", "asynctile.layers.Trainer.step"} <= ids
    inside = {"asynctile.Runtime", "asynctile.layers.GPT2Config.axes", "asynctile.layers.AdamW.hyper"}
    assert not ids & inside


def test_options_and_names_on_pages_are_links(site: Path) -> None:
    text = (site / "reference" / "errors.html").read_text()
    assert re.search(r'<a class="[^"]*internal" href="[^"]*#asynctile\.TornModelError"[^>]*><code', text)
    assert 'href="commands.html#cmdoption-asynctile-train-resume"' in text
