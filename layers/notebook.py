"""The progress bar of `async for report in trainer.run(...)` in a notebook, drawn by tqdm if it is installed.

Covers `StepBar`. It shows nothing outside a notebook. asynctile requires neither IPython nor tqdm.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from asynctile.layers.report import StepReport

__all__ = ["StepBar"]


class StepBar:
    """The progress bar of a run of at most `steps` steps (None: unknown).

    It shows nothing outside a notebook, without tqdm or ipywidgets, or if TQDM_DISABLE is set. StepBar reads that variable
    itself, because tqdm ignores it in notebooks.
    """

    def __init__(self, steps: int | None) -> None:
        self._bar: Any = None
        if _is_notebook() and not os.environ.get("TQDM_DISABLE"):
            try:
                self._bar = importlib.import_module("tqdm.notebook").tqdm(total=steps, unit="step")
            except ImportError:  # tqdm raises it for ipywidgets as well
                return

    def step(self, report: StepReport) -> None:
        """Advance by one step, done or skipped."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {report.loss:.4f}", refresh=False)
            self._bar.update()

    def close(self) -> None:
        """Stop updating, and leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def _is_notebook() -> bool:
    """Return whether this process is a Jupyter kernel. IPython in a terminal does not count."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
