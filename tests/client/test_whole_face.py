"""Client code against asynctile, whole_face.py and the examples, as two type checkers see it.

They check it from outside, with asynctile installed. .ci/check_wheel.py checks that the wheel has py.typed. `make lint` checks
asynctile's own sources.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.client import whole_face
from tests.settle import HANG_S

ROOT = Path(__file__).resolve().parents[2]
#: Reading the types of numpy, starlette and aiohttp takes most of the time, so it is done once.
CACHE = ROOT / ".mypy_cache" / "clients"
CLIENTS = [ROOT / "tests" / "client" / "whole_face.py", *sorted((ROOT / "examples").glob("*.py"))]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has asynctile installed, besides everything that this one has."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    shutil.copytree(ROOT / "asynctile", site / "asynctile", ignore=shutil.ignore_patterns("__pycache__"))
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "others.pth").write_text("\n".join(others))
    return place / "bin" / "python"


def checked(tmp_path: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a module away from the checkout, so that it finds the installed asynctile."""
    return subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)


@pytest.mark.laws
def test_clients_are_clean_under_mypy_strict(python: Path, tmp_path: Path) -> None:
    done = checked(tmp_path, "mypy", "--strict", "--python-executable", python, "--cache-dir", CACHE, *CLIENTS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.reference
def test_clients_are_clean_under_pyright_strict(python: Path, tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = checked(tmp_path, "pyright", "--pythonpath", python, *CLIENTS)
    assert "No source files found" not in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


async def test_the_whole_public_face_works(tmp_path: Path) -> None:
    statistics = await whole_face.main(tmp_path)
    assert statistics.device == "emulated"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "of-the-other", "trace.json"]
