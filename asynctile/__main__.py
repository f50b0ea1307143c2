"""`python -m asynctile` is the program `asynctile`; all of it is in asynctile/cli."""

import sys

from asynctile.cli import main

if __name__ == "__main__":
    sys.exit(main())
