"""The Python interpreter of this process, to start other processes with.

Covers `interpreter`. kernels/cpu/compiler.py and layers/tokenizer_trial.py start processes with it.
"""

from __future__ import annotations

import os
import re
import sys


def interpreter() -> str | None:
    """Return the interpreter's path, or None if it is unknown: where a program embeds Python, the path starts that program."""
    path = sys.executable
    if not path or getattr(sys, "frozen", False) or not re.fullmatch(r"(python|pypy)[\d.]*t?(\.exe)?", os.path.basename(path)):
        return None
    return path
