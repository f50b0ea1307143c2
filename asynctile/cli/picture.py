"""The picture of a run in progress, redrawn after validations in a thread beside the steps.

Covers `Picture`. asynctile/layers/plot.py draws it; summary.py asks for the last one at the end of a run.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from asynctile.cli.corpus import Corpus
from asynctile.cli.run_folder import RunFolder
from asynctile.layers.data_source import counted_of, ids_of
from asynctile.layers.entropy import bigram_loss
from asynctile.layers.plot import loss_curve

__all__ = ["Picture"]

#: Drawing takes at most this share of a run's time: with long metrics it takes seconds of a thread that others share.
_SHARE = 0.05
#: Bigrams are counted in at most this many tokens: no cap covers the RAM of their pairs.
BIGRAM_TOKENS = 1 << 20


class Picture:
    """A picture of the metrics in `folder`, with the loss of a bigram model of `corpus` as a mark."""

    def __init__(self, folder: RunFolder, corpus: Corpus) -> None:
        self._folder, self._corpus = folder, corpus
        self._bigrams: float | None = None
        self._task: asyncio.Task[Path] | None = None
        #: do not draw again before this time
        self._rests_until = 0.0

    def refresh(self) -> None:
        """Start to redraw, unless a drawing is in progress or just ended. Only `last` reports errors."""
        if (self._task is None or self._task.done()) and time.monotonic() >= self._rests_until:
            self._task = asyncio.create_task(asyncio.to_thread(self._draw))
            self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def ended(self) -> None:
        """Wait until nothing is being drawn; raises nothing."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def last(self) -> tuple[Path, float]:
        """Draw all metrics; return the path and a bigram model's loss. OSError or ValueError if drawing fails."""
        await self.ended()
        return await asyncio.to_thread(self._draw), self._bigram_loss()

    def _draw(self) -> Path:
        began = time.monotonic()
        os.environ.pop("MPLBACKEND", None)  # set by a notebook: matplotlib refuses a backend that is not installed
        path = loss_curve(self._folder.metrics.path, self._folder.path / "loss.png", bigram_loss=self._bigram_loss())
        now = time.monotonic()
        self._rests_until = now + (now - began) / _SHARE
        return path

    def _bigram_loss(self) -> float:
        """Return the loss of the held-out text by bigram counts of the training text, measured once."""
        if self._bigrams is None:
            corpus = self._corpus
            training, held_out = (ids_of(part)[:BIGRAM_TOKENS] for part in (corpus.training, corpus.held_out))
            counted = counted_of(corpus.held_out, BIGRAM_TOKENS)
            self._bigrams = bigram_loss(training, held_out, corpus.tokenizer.vocab_size, counted)
        return self._bigrams
