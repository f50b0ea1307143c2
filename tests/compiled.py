"""`python -m tests.compiled` compiles every kernel that tests run, for the CPU and as CUDA on the CPU.

`make test` does this while mypy has the other core. Otherwise all test processes would wait for the first that needs a kernel.
XDG_CACHE_HOME names the folder that keeps them; tests/conftest.py names the same.
"""

from concurrent.futures import ThreadPoolExecutor

from asynctile.execute.workers import player  # noqa: F401  # it loads the compiled loops
from asynctile.kernels.cpu import warm
from tests.cuda import build

if __name__ == "__main__":
    with ThreadPoolExecutor() as threads:
        compiling = threads.submit(warm)
        if not build.missing():
            build.library()
        compiling.result()
