"""The Python that this process runs on, for those who try or compile something in a process of its own.

Covers `interpreter`. What is started with it is the affair of kernels/cpu/compiler.py and layers/tokenizer_trial.py.
"""

from __future__ import annotations

import os
import re
import sys


def interpreter() -> str | None:
    """Its path; None if that cannot be known, as inside a program that embeds one, which would be started in its place."""
    path = sys.executable
    if not path or getattr(sys, "frozen", False) or not re.fullmatch(r"(python|pypy)[\d.]*t?(\.exe)?", os.path.basename(path)):
        return None
    return path
