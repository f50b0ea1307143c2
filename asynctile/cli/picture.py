"""The picture of a run while it goes on: drawn anew behind a validation, in a thread beside the steps.

Covers `Picture`. What is drawn is asynctile/layers/plot.py; the last one, at the end of a run, is asked for by summary.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from asynctile.cli.corpus import Corpus
from asynctile.cli.run_folder import RunFolder
from asynctile.layers.data import bigram_loss
from asynctile.layers.plot import loss_curve

__all__ = ["Picture"]

#: Drawing takes at most this share of a run's time: of long metrics it takes seconds, of a thread that others share.
_SHARE = 0.05
#: Of longer texts the first so many tokens tell the bigrams: RAM for their pairs is not under a cap.
_BIGRAM_TOKENS = 1 << 20


class Picture:
    """Of the metrics in `folder`; a bigram model of the text of `corpus` is the mark in it."""

    def __init__(self, folder: RunFolder, corpus: Corpus) -> None:
        self._folder, self._corpus = folder, corpus
        self._bigrams: float | None = None
        self._task: asyncio.Task[Path] | None = None
        #: not to be drawn again before
        self._rests_until = 0.0

    def refresh(self) -> None:
        """Begin to draw it, unless it is being drawn or was so a moment ago. What goes wrong is told by the last one."""
        if (self._task is None or self._task.done()) and time.monotonic() >= self._rests_until:
            self._task = asyncio.create_task(asyncio.to_thread(self._draw))
            self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def ended(self) -> None:
        """Wait until nobody draws; raises nothing."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def last(self) -> tuple[Path, float]:
        """Draw it with all that the metrics have; where it is, and a bigram model's loss. OSError or ValueError if it fails."""
        await self.ended()
        return await asyncio.to_thread(self._draw), self._bigram_loss()

    def _draw(self) -> Path:
        began = time.monotonic()
        os.environ.pop("MPLBACKEND", None)  # a notebook's: matplotlib refuses one that is not installed
        path = loss_curve(self._folder.metrics.path, self._folder.path / "loss.png", bigram_loss=self._bigram_loss())
        now = time.monotonic()
        self._rests_until = now + (now - began) / _SHARE
        return path

    def _bigram_loss(self) -> float:
        """Of the held-out text, by counts of the text to train on; measured once."""
        if self._bigrams is None:
            training, held_out = (part[:_BIGRAM_TOKENS] for part in (self._corpus.training, self._corpus.held_out))
            self._bigrams = bigram_loss(training, held_out, self._corpus.tokenizer.vocab_size)
        return self._bigrams
