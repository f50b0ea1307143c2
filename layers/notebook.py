"""The bar that a notebook shows for `async for report in trainer.run(...)`, by tqdm where that is installed.

Covers `StepBar`. It shows nothing outside of notebooks, and asynctile needs neither IPython nor tqdm.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from asynctile.layers.report import StepReport

__all__ = ["StepBar"]


class StepBar:
    """Of a run of at most `steps` steps, None if nobody knows.

    It shows nothing outside of a notebook, without tqdm or ipywidgets, and where TQDM_DISABLE is set, which tqdm itself reads
    everywhere but in notebooks.
    """

    def __init__(self, steps: int | None) -> None:
        self._bar: Any = None
        if _is_notebook() and not os.environ.get("TQDM_DISABLE"):
            try:
                self._bar = importlib.import_module("tqdm.notebook").tqdm(total=steps, unit="step")
            except ImportError:  # tqdm raises it for ipywidgets as well
                return

    def step(self, report: StepReport) -> None:
        """A step was done, or skipped."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {report.loss:.4f}", refresh=False)
            self._bar.update()

    def close(self) -> None:
        """Leave it as it is."""
        if self._bar is not None:
            self._bar.close()


def _is_notebook() -> bool:
    """Whether this process is a kernel of Jupyter; a terminal's IPython is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
