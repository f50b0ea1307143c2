"""The extension that writes the reference is imported from where Sphinx finds it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "_ext"))
