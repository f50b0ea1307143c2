"""Who is told of a run of `asynctile train`: the classes that --callback names, and TensorBoard's files with --tensorboard.

Covers `open_callbacks`. What they are told is asynctile/callbacks.py. Code is named by who calls alone: no file of a run and no
--config can name a class (options.py).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable

from asynctile.callbacks import Callback, Callbacks

__all__ = ["open_callbacks"]


def open_callbacks(named: Iterable[str], tensorboard: bool | None) -> Callbacks:
    """Those of a run, TensorBoard's behind the others. ValueError for what cannot be imported or is no callback."""
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
    """What a class MODULE:CLASS makes, called without arguments; a module of the folder where one stands goes first."""
    module, _, kind = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), kind)
        made = found()
    except ModuleNotFoundError as error:
        where = "in the current folder and in the environment"
        raise ValueError(f"--callback {name}: there is no module {error.name} {where}; write MODULE:CLASS, such as "
                         "tracker:Tracker for the class Tracker of tracker.py") from error
    except Exception as error:
        raise ValueError(f"--callback {name} cannot be made: {error!r}; mend it, or leave it out") from error
    if not isinstance(made, Callback):
        raise ValueError(f"--callback {name} makes {type(made).__name__}, expected an asynctile.callbacks.Callback; derive the "
                         "class from that")
    return made
