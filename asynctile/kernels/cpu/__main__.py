"""`python -m asynctile.kernels.cpu NAME...` compiles these kernels into Numba's cache, for the process that started it."""

import sys

from asynctile.kernels.cpu.compiler import serve
from asynctile.kernels.cpu.jit import prepare_alone
from asynctile.kernels.cpu.locator import drop_old

drop_old()
serve(sys.argv[1:], prepare_alone)
