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
from asynctile.layers.data import bigram_entropy
from asynctile.layers.plot import loss_curve

__all__ = ["Picture"]

#: Drawing takes at most this share of a run's time: of long metrics it takes seconds, of a thread that others share.
_SHARE = 0.05
#: Of a longer text that is held out the first so many tokens tell its bigrams: RAM for all pairs of these is not under a cap.
_BIGRAM_TOKENS = 1 << 20


class Picture:
    """Of the metrics in `folder`; the text held out by `corpus` is what a bigram model is measured on."""

    def __init__(self, folder: RunFolder, corpus: Corpus) -> None:
        self._folder, self._corpus = folder, corpus
        self._entropy: float | None = None
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
        """Draw it with all that the metrics have; where it is, and the bigram entropy. OSError or ValueError if that fails."""
        await self.ended()
        return await asyncio.to_thread(self._draw), self._bigram_entropy()

    def _draw(self) -> Path:
        began = time.monotonic()
        os.environ.pop("MPLBACKEND", None)  # a notebook's: matplotlib refuses one that is not installed
        path = loss_curve(self._folder.metrics.path, self._folder.path / "loss.png", bigram_entropy=self._bigram_entropy())
        now = time.monotonic()
        self._rests_until = now + (now - began) / _SHARE
        return path

    def _bigram_entropy(self) -> float:
        """Measured once."""
        if self._entropy is None:
            self._entropy = bigram_entropy(self._corpus.held_out[:_BIGRAM_TOKENS], self._corpus.tokenizer.vocab_size)
        return self._entropy
