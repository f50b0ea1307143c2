"""Importing this module restarts the program without OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE, if they are set.

Both variables change the speed of every matrix product, and its bits.
"""

from __future__ import annotations

import os
import sys

HARMFUL = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

if any(name in os.environ for name in HARMFUL):
    _clean = {name: value for name, value in os.environ.items() if name not in HARMFUL}
    print(f"restarting without {', '.join(name for name in HARMFUL if name in os.environ)}", file=sys.stderr, flush=True)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], _clean)
