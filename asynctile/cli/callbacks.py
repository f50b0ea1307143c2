"""The callbacks of `asynctile train`: classes named by --callback, and TensorBoard's files with --tensorboard.

Covers `open_callbacks`. asynctile/callbacks.py says what they are told. Only the command line names code: neither a file of a
run nor --config can name a class (options.py).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable

from asynctile.callbacks import Callback, Callbacks

__all__ = ["open_callbacks"]


def open_callbacks(named: Iterable[str], tensorboard: bool | None) -> Callbacks:
    """Return the callbacks of a run, TensorBoard's last. ValueError for a class that cannot be imported or is no callback."""
    callbacks = [_made(name) for name in named]
    if tensorboard:
        try:
            from asynctile.cli.tensorboard import TensorBoard
        except ImportError as error:
            raise ValueError(f"--tensorboard needs the package tensorboard ({error}); pip install 'asynctile[tensorboard]', or "
                             "leave --tensorboard out") from error
        callbacks.append(TensorBoard())
    return Callbacks(callbacks)


def _made(name: str) -> Callback:
    """Return an instance of the class MODULE:CLASS, made without arguments. Modules of the current folder come first."""
    module, _, kind = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), kind)
        made = found()
    except ModuleNotFoundError as error:
        where = "in the current folder or the environment"
        raise ValueError(f"--callback {name}: found no module {error.name} {where}; write MODULE:CLASS, such as "
                         "tracker:Tracker for the class Tracker in tracker.py") from error
    except Exception as error:
        raise ValueError(f"--callback {name} failed to start: {error!r}; fix the class, or leave the option out") from error
    if not isinstance(made, Callback):
        raise ValueError(f"--callback {name} makes a {type(made).__name__}, not an asynctile.callbacks.Callback; derive the "
                         "class from Callback")
    return made
