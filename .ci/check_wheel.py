"""Checks a built wheel: it installs the one name `asynctile`, with every module, CUDA source and its types, and it imports.

Called by .ci/packages as: check_wheel.py WHEEL INSTALLED, with INSTALLED the folder that it was installed into.
"""

import importlib
import sys
import zipfile
from pathlib import Path

NAMES = ("asynctile", "asynctile.layers", "asynctile.storage", "asynctile.errors", "asynctile.cli")
PUBLIC = (("asynctile", "Engine"), ("asynctile.layers", "GPT2"), ("asynctile.layers", "GPT2Config"),
          ("asynctile.layers", "AdamW"), ("asynctile.layers", "Trainer"))


def source_modules(root: Path) -> set[str]:
    """Names, as in a wheel, of all modules and CUDA sources of a checkout, and of what says that it is typed."""
    modules = set()
    for name, top in (("asynctile", "asynctile"), ("asynctile/layers", "layers"), ("asynctile/storage", "storage")):
        folder = root / top
        for path in (path for kind in ("*.py", "*.cu", "*.cuh", "*.toml", "py.typed") for path in folder.rglob(kind)):
            inner = path.relative_to(folder).as_posix()
            if not (name == "asynctile" and inner.startswith(("layers/", "storage/"))):  # rglob may follow the links
                modules.add(f"{name}/{inner}")
    return modules


def check_content(wheel: Path) -> None:
    content = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    tops = {name.split("/")[0] for name in content}
    strangers = {top for top in tops if top != "asynctile" and not top.endswith(".dist-info")}
    if strangers:
        sys.exit(f"{wheel.name} installs other names than asynctile: {', '.join(sorted(strangers))}")
    missing = source_modules(Path(__file__).resolve().parents[1]) - content
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}; has each folder its __init__.py, and package-data CUDA's?")


def check_imports(installed: Path) -> None:
    sys.path.insert(0, str(installed))
    for name in NAMES:
        module = importlib.import_module(name)
        if not Path(str(module.__file__)).is_relative_to(installed):
            sys.exit(f"{name} came from {module.__file__}, not from the wheel in {installed}")
    for name, attribute in PUBLIC:
        getattr(importlib.import_module(name), attribute)


if __name__ == "__main__":
    check_content(Path(sys.argv[1]))
    check_imports(Path(sys.argv[2]).resolve())
    print(f"{Path(sys.argv[1]).name}: one name, every module, imports work")
