"""One session of a run: step after step until the end or a signal, with metrics, validations and checkpoints.

Covers `Session`. train.py prepares data, engine and model, summary.py ends the run with sample and picture, and validation.py
decides when a validation is due and which model is best.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from asynctile import Engine
from asynctile.callbacks import Callbacks
from asynctile.cli.corpus import Corpus
from asynctile.cli.display import Display
from asynctile.cli.figures import as_share
from asynctile.cli.interrupt import Interrupt
from asynctile.cli.journal import ResumePoint
from asynctile.cli.options import Options
from asynctile.cli.pace import Ahead
from asynctile.cli.picture import Picture
from asynctile.cli.run_folder import RunFolder, check_same_model
from asynctile.cli.sample import MOST_CHARACTERS, Sample, sample
from asynctile.cli.team import Team
from asynctile.cli.terminal import printable
from asynctile.cli.tracing import Tracing
from asynctile.cli.validation import Validations
from asynctile.errors import AsynctileError, BudgetError, CheckpointError
from asynctile.layers import Trainer
from asynctile.layers.companions import CARD
from asynctile.layers.data import Batch
from asynctile.layers.data_source import TrainingBatches
from asynctile.layers.evaluation import Evaluation, evaluate, mean_bytes
from asynctile.layers.model import model_state_of

__all__ = ["Session", "last_words"]

#: After this many steps in a row without a finite loss, no later one will have one either.
_SKIPPED_AT_MOST = 10
#: The key of the validations' state in the data state of a checkpoint.
_VALIDATIONS = "validations"

#: Makes a model card from the lines of metrics and the previous card.
Card = Callable[[Iterable[Mapping[str, Any]], bytes | None], bytes]


class Session:
    """The loop over steps, with everything that a step needs."""

    def __init__(self, *, options: Options, folder: RunFolder, corpus: Corpus, engine: Engine, trainer: Trainer,
                 batches: TrainingBatches, validations: Validations, card: Card, display: Display, interrupt: Interrupt,
                 callbacks: Callbacks, team: Team) -> None:
        self.options, self.folder, self.corpus = options, folder, corpus
        self.engine, self.trainer, self.batches = engine, trainer, batches
        self.validations, self.callbacks, self.team = validations, callbacks, team
        self.display, self.interrupt = display, interrupt
        self.picture = Picture(folder, corpus)
        self._card = card
        #: set if --trace was given
        self.tracing: Tracing | None = None
        self._skipped = 0
        #: mean bytes of a token in the validation windows, if they stand for text
        self._mean_bytes: float | None = None
        #: step and path of the checkpoint that is being written
        self._saving: tuple[int, Path] | None = None

    def go_on(self, checkpoint: Path) -> None:
        """Restore the state of data and validations from a checkpoint.

        ValueError if the checkpoint is of other data, or of another model than the run's.
        """
        record = RunFolder(checkpoint.parents[1]).read_record()
        check_same_model(record.get("model"), self.trainer.model.config.to_hf(), f"checkpoint {checkpoint}")
        state = self.trainer.data_state
        if not state:
            raise ValueError(f"checkpoint {checkpoint} holds no position in the data, so `asynctile train` did not "
                             "save it; resume from one that it saved")
        try:
            self.batches.load_state_dict(state)
            if _VALIDATIONS in state:
                self.validations.load_state_dict(state[_VALIDATIONS])
            else:  # from a version whose validations had no state of their own
                self.validations.step = self.folder.validated(self.trainer.step_count)
        except ValueError as error:
            raise ValueError(f"checkpoint {checkpoint}: {error}") from error
        if self.validations.best_step and not self.folder.checkpoints.has_best:
            self.display.note(f"the best model so far, of step {self.validations.best_step}, is no longer in "
                              f"{checkpoint.parent}; the next better one will be saved")

    async def run(self) -> None:
        """Do the remaining steps and validations; after a signal, return early with a checkpoint.

        Checkpoints are written while steps go on. If one fails, CheckpointError is raised at the end of the current step.
        """
        try:
            await asyncio.to_thread(self._look_at_windows)
        except InterruptedError:
            return
        self.display.begin(await self._ahead())
        try:
            await self._go()
        finally:
            await self.picture.ended()

    async def _go(self) -> None:
        newest = self._stands
        try:
            await self._validate_if_due()
            while self.is_going:
                await self._step()
                await self._validate_if_due()
                if self._saving and not self.trainer.saving:
                    await self._saved()
                if self.trainer.step_count % self.options.save_every == 0 and self._is_new(newest):
                    newest = await self._save()
        except (AsynctileError, OSError):
            # The checkpoint being written is what to resume from after this error.
            with suppress(AsynctileError):
                await self._saved()
            raise
        if self._is_new(newest):
            await self._save()
        await self._saved()

    async def _ahead(self) -> Ahead:
        trainer, batches, steps = self.trainer, self.batches, self.options.steps
        done = trainer.step_count
        if done < steps:
            await self._tell("measure")
        rate = await trainer.gemm_rate(batches.batch_size, batches.seq_len) if done < steps else None
        flops = model_state_of(trainer.model).tuning.flops_per_token(trainer.model.config, batches.seq_len)
        return Ahead(steps=steps, done=done, validate_every=self.validations.every, save_every=self.options.save_every,
                     flops_per_token=flops, flops_per_s=None if rate is None else rate * self.options.nodes)  # fmt: skip

    @property
    def mark(self) -> ResumePoint:
        """The position of the run in its metrics."""
        trainer = self.trainer
        return ResumePoint(step=trainer.step_count, skipped=trainer.skipped_count, validated=self.validations.step)

    @property
    def is_going(self) -> bool:
        """Whether there is another step to do."""
        return not (self.interrupt.requested or self.validations.is_over or self.trainer.step_count >= self.options.steps)

    def _is_new(self, newest: tuple[int, int]) -> bool:
        """Return whether there is more to save than in the newest checkpoint: a skipped step has changed nothing."""
        return self.trainer.step_count > 0 and self._stands != newest

    @property
    def _stands(self) -> tuple[int, int]:
        """The step and the validation that a checkpoint would hold now."""
        return self.trainer.step_count, self.validations.step

    async def _step(self) -> None:
        if self.tracing is not None:
            await self.tracing.before(self.trainer.step_count + 1)
        await self._tell("step")
        report = await self.trainer.step(*self._sound(next(self.batches)))
        if self.tracing is not None:
            await self.tracing.behind(report.step)
        self.folder.append_step(report.as_dict())
        self.display.step(report)
        await self.callbacks.step(report)
        self._skipped = self._skipped + 1 if report.skipped else 0
        if self._skipped == _SKIPPED_AT_MOST and not self.trainer.step_count:
            raise AsynctileError(f"the loss of the first {_SKIPPED_AT_MOST} steps was not finite, before any update: the model "
                                 "that the run started from is damaged; start again with another --model")
        if self._skipped == _SKIPPED_AT_MOST:
            raise AsynctileError(f"the loss of {_SKIPPED_AT_MOST} steps in a row was not finite, after step "
                                 f"{report.step}; "
                                 f"start again with a --lr below {self.options.lr} or with --clip-norm 1")

    async def _tell(self, do: str, **what: Any) -> None:
        """Tell other nodes what comes next. If one of them was asked to stop, so is the run."""
        if await self.team.tell(do, **what):
            self.interrupt.asked = True

    def _sound(self, batch: Batch) -> Batch:
        """Return the batch; CheckpointError if the model lacks one of its tokens, since token files have no checksum."""
        size, largest = self.trainer.model.config.vocab_size, int(max(part.max() for part in batch[:2]))
        if largest >= size:
            raise CheckpointError(f"the tokens of the run {self.folder.path} were damaged or changed: one is "
                                  f"{largest}, but the model has only {size}; restore the files, or start a new run")
        return batch

    async def _validate_if_due(self) -> None:
        """Validate as a whole; after a signal do nothing, and the resumed run validates first."""
        step = self.trainer.step_count
        if self.interrupt.requested or not self.validations.is_due(step):
            return
        evaluation = await self._evaluate()
        sampled = await self.sample(self.options.sample_tokens) if evaluation is not None else None
        if evaluation is None or sampled is None:
            return
        is_best = self.validations.count(step, evaluation.loss)
        self.folder.append_validation({"step": step, **evaluation.as_dict()})
        self.display.validation(step, evaluation, is_best)
        if self.options.sample_tokens:
            self.folder.append_sample({"step": step, "text": sampled.text[:MOST_CHARACTERS]})
            self.display.note(f"{sampled}\n")
        await self.callbacks.validation(step, evaluation, is_best)
        if step:
            self.picture.refresh()
        if is_best and step:
            await self._save_best(step)
        self.display.validated()
        if self.validations.is_over and step < self.options.steps:
            self.display.note(f"ending after step {step}: {self.validations.why_over}")

    def _look_at_windows(self) -> None:
        """Check the held-out tokens before anything changes, in a thread. CheckpointError if they are damaged."""
        windows, watched = self.validations.batches, self.interrupt.watched
        for batch in watched(windows):
            self._sound(batch)
        try:
            self._mean_bytes = mean_bytes(self.corpus.tokenizer, watched(windows.rows()))
        except ValueError as error:
            raise CheckpointError(f"the tokens of the run {self.folder.path} are damaged: {error}; restore the files, or start "
                                  "a new run") from error

    async def _evaluate(self) -> Evaluation | None:
        """Return the loss of the current model on the run's windows, or None after a signal."""
        windows = self.validations.batches

        def progress(done: int) -> None:
            self.display.validating(done, len(windows))
            self.interrupt.check()

        self.display.validating(0, len(windows))
        sound = map(self._sound, windows)
        try:
            return await evaluate(self.trainer.model, sound, bytes_per_token=self._mean_bytes, progress=progress)
        except InterruptedError:
            return None

    async def sample(self, tokens: int) -> Sample | None:
        """Return held-out text and the model's continuation of it: empty for 0 tokens, None after a signal.

        AsynctileError, which names the run, if the model writes nothing.
        """
        try:
            return Sample() if not tokens else await sample(
                self.trainer.model, self.corpus.tokenizer, self.corpus.held_out, tokens=tokens, seed=self.options.seed,
                check=self.interrupt.check)  # fmt: skip
        except InterruptedError:
            return None
        except BudgetError as error:  # a short step may need less than a text
            raise BudgetError(f"the run {self.folder.path} writes no sample: {error}", error.floor) from error
        except AsynctileError as error:
            raise AsynctileError(f"the run {self.folder.path} writes no sample: {error}, or a --lr below "
                                 f"{self.options.lr}") from error

    async def _save_best(self, step: int) -> None:
        """Save the best model so far, its weights and the files beside them, in place of the previous best."""
        await self._saved()
        self.display.stage(f"saving step {step}, the best so far")
        model, path = self.trainer.model, self.folder.new_best()
        await self._describe()
        await self._tell("lend")
        # A torn model names the last checkpoint, from which training can continue.
        checkpoint = model.last_checkpoint
        await (model.save_pretrained(path) if model.adapter is None else model.save_adapter(path))
        model_state_of(model).last_checkpoint = checkpoint
        await self.callbacks.saved(step, path)

    async def _save(self) -> tuple[int, int]:
        await self._saved()
        step, path = self.trainer.step_count, self.folder.new_checkpoint(self.trainer.step_count)
        what = f"saving step {step}"
        self.display.stage(what)
        self.trainer.data_state = {**self.batches.state_dict(), _VALIDATIONS: self.validations.state_dict()}
        await self._describe()
        self._saving = step, path

        def progress(done: int, total: int) -> None:
            if done == total:
                self.interrupt.last_words = last_words(self.folder, path)
            self.display.progress(what, done, total, as_share)

        await self._tell("save", checkpoint=path.name)
        await self.trainer.save(path, wait=False, progress=progress)
        self.display.saved()
        return self._stands

    async def _describe(self) -> None:
        """Put a model card of the run so far beside the weights."""
        model = self.trainer.model
        card = await asyncio.to_thread(self._card, self.folder.metrics.lines(), model.companions.get(CARD))
        model.companions = {**model.companions, CARD: card}

    async def _saved(self) -> None:
        """Wait until the newest checkpoint is complete, and tell callbacks; only then remove older ones."""
        await self.trainer.saved()
        saving, self._saving = self._saving, None
        if saving is not None:
            await self.callbacks.saved(*saving)
            await asyncio.to_thread(self.folder.prune, self.options.keep)


def last_words(folder: RunFolder, newest: Path | None) -> str:
    """Return the last line of a run that a second signal ends. newest: its newest checkpoint."""
    return printable(f"asynctile train: stopped at once; with --resume, {folder.start(newest)}")
