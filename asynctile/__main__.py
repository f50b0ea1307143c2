"""`python -m asynctile` runs the program `asynctile`, which is in asynctile/cli."""

import sys

from asynctile.cli import main

if __name__ == "__main__":
    sys.exit(main())
