"""One session of a run: step after step until the end or a signal, with metrics, checkpoints and validation.

Covers `Session`. What comes before (data, engine, model) is train.py, what comes after (sample, picture) summary.py.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.cli.corpus import Corpus
from asynctile.cli.display import Display
from asynctile.cli.interrupt import Interrupt
from asynctile.cli.options import Options
from asynctile.cli.run_folder import RunFolder, check_same_model
from asynctile.errors import AsynctileError, CheckpointError
from asynctile.layers import Trainer
from asynctile.layers.data import Batches, validation_batches

__all__ = ["Session", "go_on"]

#: Validations on the way: this many, each on a few batches spread over the held-out part. The last one takes all of it.
_VALIDATIONS, _BATCHES_ON_THE_WAY = 10, 4
#: Steps in a row without a finite loss: the next will have none either.
_SKIPPED_AT_MOST = 10


class Session:
    """Everything that a step needs, and the loop over steps."""

    def __init__(self, *, options: Options, folder: RunFolder, corpus: Corpus, engine: Engine, trainer: Trainer,
                 batches: Batches, display: Display, interrupt: Interrupt) -> None:
        self.options, self.folder, self.corpus = options, folder, corpus
        self.engine, self.trainer, self.batches = engine, trainer, batches
        self.display, self.interrupt = display, interrupt
        self._skipped = 0
        #: a checkpoint was begun, and nobody has seen it whole
        self._saving = False

    async def run(self) -> None:
        """Do the steps that are left. Returns early, with a checkpoint, when a signal came.

        Checkpoints on the way are written while steps go on. CheckpointError if one cannot be, at the end of the step
        in which it failed.
        """
        newest = self.trainer.step_count
        try:
            while self.trainer.step_count < self.options.steps and not self.interrupt.requested:
                await self._step()
                if self._saving and not self.trainer.saving:
                    await self._saved()
                # Not twice: a step that was skipped has changed nothing.
                if self.trainer.step_count % self.options.save_every == 0 and self.trainer.step_count != newest:
                    newest = await self._save()
        except (AsynctileError, OSError):
            # What is being saved is what to go on from after this error.
            with suppress(CheckpointError):
                await self._saved()
            raise
        if newest != self.trainer.step_count:
            await self._save()
        await self._saved()

    async def validate(self, limit: int | None = None) -> float | None:
        """Mean loss on the held-out part, or on `limit` batches spread over it; None when a signal came meanwhile."""
        losses = []
        self.display.stage("measuring the loss on held-out text")
        batches = validation_batches(self.corpus.held_out, self.batches.batch_size, self.batches.seq_len, limit)
        for batch in batches:
            if self.interrupt.requested:
                return None
            losses.append(float(await self.trainer.model.loss(*self._sound(batch))))
        return float(np.mean(losses))

    async def _step(self) -> None:
        report = await self.trainer.step(*self._sound(next(self.batches)))
        line = report.as_dict()
        self._skipped = self._skipped + 1 if report.skipped else 0
        loss = None if report.skipped else await self._validation_after(report.step)
        if loss is not None and math.isfinite(loss):
            line["validation_loss"] = loss
        self.folder.append(line)
        self.display.step(report)
        if self._skipped == _SKIPPED_AT_MOST and not self.trainer.step_count:
            raise AsynctileError(f"the loss of the first {_SKIPPED_AT_MOST} steps was not finite, before any update: the model "
                                 "that the run began with is damaged; start again with another --model")
        if self._skipped == _SKIPPED_AT_MOST:
            raise AsynctileError(f"the loss of {_SKIPPED_AT_MOST} steps in a row was not finite, after step "
                                 f"{report.step}; "
                                 f"start again with a --lr below {self.options.lr} or with --clip-norm 1")

    def _sound(self, batch: tuple[NDArray[Any], NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The batch; CheckpointError, naming the tokens' folder, if the model has no such token: the file has no checksum."""
        size, largest = self.trainer.model.config.vocab_size, int(max(part.max() for part in batch))
        if largest >= size:
            raise CheckpointError(f"the tokens in {self.folder.tokens} are damaged: one is {largest}, the model has {size}; "
                                  "start another run")
        return batch

    async def _validation_after(self, step: int) -> float | None:
        if step == self.options.steps:
            return await self.validate()
        if step % max(1, self.options.steps // _VALIDATIONS) == 0:
            return await self.validate(_BATCHES_ON_THE_WAY)
        return None

    async def _save(self) -> int:
        await self._saved()
        step: int = self.trainer.step_count
        self.display.stage(f"saving step {step}")
        self.trainer.data_state = self.batches.state_dict()
        self._saving = True
        await self.trainer.save(self.folder.new_checkpoint(step), wait=False)
        return step

    async def _saved(self) -> None:
        """Wait until the newest checkpoint is whole; only then older ones may go."""
        await self.trainer.saved()
        if self._saving:
            await asyncio.to_thread(self.folder.prune, self.options.keep)
        self._saving = False


def go_on(trainer: Trainer, batches: Batches, checkpoint: Path) -> None:
    """Put the data where the checkpoint left it. ValueError if it is of other data or of another model than the run's."""
    record = RunFolder(checkpoint.parents[1]).read_record()
    check_same_model(record.get("model"), trainer.model.config.to_hf(), f"checkpoint {checkpoint}")
    state: Any = trainer.data_state
    if not state:
        raise ValueError(f"checkpoint {checkpoint} does not say where in the data it was; it was not saved by this "
                         "program")
    try:
        batches.load_state_dict(state)
    except ValueError as error:
        raise ValueError(f"checkpoint {checkpoint}: {error}") from error
