"""Trainer: steps over a model, its optimizer state, cancellation and failure in mid-step.

A step has two parts. Up to the mark "update" nothing of the model has changed: it may be cancelled or fail and the
model is as it was. From there on weights change tile by tile: the step runs to its end under shield, and if it fails
the model is torn. Checkpoints are checkpoint.py; what a step computes is step.py.

Long because a step is followed here from its inputs to its report, with every way in which it may end.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asynctile.errors import AsynctileError, BudgetError, DeviceError, StalledError, TornModelError
from asynctile.layers.activations import AUTO
from asynctile.layers.batch import Batches, check_tokens, loss_inputs
from asynctile.layers.checkpoint import load, save
from asynctile.layers.data_state import kept
from asynctile.layers.feed import Steps
from asynctile.layers.guesses import answering
from asynctile.layers.keeping import Keeping
from asynctile.layers.model import Model, check_engine
from asynctile.layers.optimizer import AdamW
from asynctile.layers.report import StepReport
from asynctile.layers.requests import check_count, check_kind
from asynctile.layers.rows import Rows
from asynctile.layers.saving import Saving
from asynctile.layers.settings import Settings, Training
from asynctile.layers.telling import tell_data_ended, tell_step
from asynctile.layers.update_placement import NOWHERE, check_update, tiles_to_update_on_host
from asynctile.loop.thread import under_shield
from asynctile.measure.statistics import StepTraffic
from asynctile.program.program import UPDATE, Program
from asynctile.repeat.job import Job
from asynctile.share import Share
from asynctile.storage.tile import Tile

#: Numbers of a batch that are checked and cut on the loop: a thread takes as long to begin.
AT_ONCE = 1 << 16

#: Trainer._report of a step that has begun.
Reporter = Callable[..., StepReport]


@answering
class Trainer:
    """Trains `model` with `optimizer`.

    clip_norm: scale gradients to at most this global norm (then updates are a second pass); None: update each tile as
    soon as its gradient is complete. micro_batches: parts of a batch that share no row tile and go through a layer one after
    another; under a cap in more passes. recompute: True computes activations again in backward, False keeps them, "auto" keeps
    those of as many layers as fit under the caps beside everything else, from the last one on, or where something has to move
    of as many as leave the link faster than compute; no result depends on it. update: where AdamW runs, "device", "host" (in
    RAM, so that moments never move and a gradient moves once) or "auto", which splits by the engine's rates; on cpu it says
    nothing. ValueError for any other setting, TypeError for another object.

    Moments and step_count are the model's: another Trainer of the same model goes on with both, under settings of its own, and
    several may take turns. So a schedule counts the updates of the model. To begin anew, save_pretrained and load that.

    step_count: updates of the model. skipped_count: steps skipped here since a loss was not finite. last_report: of the last
    step here that counted, also if whoever awaited it was cancelled meanwhile; None before the first. data_state: a dict of
    the caller's (where the data stands) of what JSON holds, with texts as keys; saved and restored with checkpoints.
    """

    def __init__(
        self,
        model: Model,
        optimizer: AdamW | None = None,
        *,
        clip_norm: float | None = None,
        micro_batches: int = 1,
        recompute: bool | str = AUTO,
        update: str = "auto",
    ) -> None:
        check_kind("model", model, Model, "a model, such as GPT2.create makes")
        if optimizer is not None:
            check_kind("optimizer", optimizer, AdamW, "an AdamW, or None for AdamW()")
        self.settings: Settings = Settings(clip_norm=clip_norm, micro_batches=micro_batches, recompute=recompute)
        self.update: str = check_update(update)
        model.train()
        if model.config.has_dropout:
            warnings.warn("the model's config asks for dropout, which is kept for saving and never applied", stacklevel=2)
        self.model = model
        self.engine: Share = model.engine
        self.optimizer: AdamW = optimizer if optimizer is not None else AdamW()
        self.skipped_count: int = 0
        self.last_report: StepReport | None = None
        self.data_state: dict[str, Any] = {}
        #: by program with every update on the device, what "auto" came to
        self._chosen: WeakKeyDictionary[Program, frozenset[Tile]] = WeakKeyDictionary()
        self._keeping = Keeping(model, self.settings.recompute)
        self._saving = Saving(self.engine)

    def __repr__(self) -> str:
        """Of which model, how far it is and by which settings."""
        settings = ", ".join(f"{name}={value!r}" for name, value in asdict(self.settings).items())
        return f"<{type(self).__name__} of {self.model.name} after step {self.step_count}: {self.optimizer!r}, {settings}>"

    @property
    def step_count(self) -> int:
        """Updates of the model, a count."""
        return self.model.step_count

    @property
    def clip_norm(self) -> float | None:
        """The largest global norm of a gradient, as it was asked for; None: not clipped."""
        return self.settings.clip_norm

    @property
    def micro_batches(self) -> int:
        """Parts that a batch goes through a layer in, a count."""
        return self.settings.micro_batches

    @property
    def recompute(self) -> bool | str:
        """As it was asked for: True, False or "auto"."""
        return self.settings.recompute

    async def step(self, tokens: ArrayLike, targets: ArrayLike) -> StepReport:
        """One update from int arrays (B, T); targets of -100 are ignored.

        Raises ValueError or TypeError for wrong arrays, BudgetError before any work if the caps are too small,
        DeviceError if an operation failed and the model is as it was, TornModelError if it is not. Cancelled, it may have
        counted all the same: step_count and last_report tell.
        """
        return await self.step_for(lambda: None, tokens, targets)

    async def step_for(self, counted: Callable[[], None], tokens: ArrayLike, targets: ArrayLike) -> StepReport:
        """`step`; counted: called on the device's loop once it has counted, also if whoever awaits it was cancelled."""
        return await self.engine.call(self._step(counted, tokens, targets))

    async def _step(self, counted: Callable[[], None], tokens: ArrayLike, targets: ArrayLike) -> StepReport:
        kind = "step" if self.clip_norm is None else "step_clipped"
        async with self.model.changing.held():
            self.model.check_whole("step")
            rows, inputs, count = await self._cut(tokens, targets)

            async def run(rows: Rows, kept: int) -> StepReport:
                program = await self._placed(kind, rows, kept)
                await self._prepare(program)
                inputs["hyper"] = self.optimizer.hyper(self.step_count + 1)
                report = partial(self._report, self.engine.traffic(), time.perf_counter(), rows.batch * rows.length, count)
                return await self._run(program, inputs, count, report, counted)

            report = await self._keeping.run(kind, rows, run)
            await self.model.publish()
            return report

    def run(self, batches: Batches, *, steps: int | None = None) -> Steps:
        """Step over an iterable or async iterable of (tokens, targets), at most `steps` of them; TypeError for anything else.

        A plain iterable is advanced in a thread of its own, when a step wants a batch and never ahead. Cancelled in mid-run, go
        on with what this returned: a batch that was taken, and whose step has not counted, is the next one. Where the batches
        end before `steps`, the run ends there, with a warning in the log and an event, DataEnded.
        ValueError, at once, for steps that are no whole number of at least 0.
        """
        if steps is not None:
            check_count("steps", steps, 0)
        return Steps(self.engine, self.step_for, batches, steps, partial(tell_data_ended, self.engine, self.model.name))

    async def gradients(self, tokens: ArrayLike, targets: ArrayLike) -> dict[str, NDArray[np.float32]]:
        """Every gradient by parameter name, float32; nothing is updated."""

        async def job() -> dict[str, NDArray[np.float32]]:
            async with self.model.changing.held():
                rows, inputs, _ = await self._cut(tokens, targets)
                outputs = {name: np.empty(item.shape, np.float32) for name, item in self.model.parameters.items()}

                async def run(rows: Rows, kept: int) -> None:
                    await self.model.run(await self._recorded("gradients", rows, kept), inputs, outputs)

                await self._keeping.run("gradients", rows, run)
                return outputs

        return await self.engine.call(job())

    async def gemm_rate(self, batch_size: int, seq_len: int) -> float | None:
        """FLOP/s of products on its device, to judge the speed of steps by: measured in some tens of milliseconds, in memory
        that steps of such batches use. None where a probe would push tiles out. No result depends on it. BudgetError as `step`.
        """
        kind = "step" if self.clip_norm is None else "step_clipped"
        for name, count in (("batch_size", batch_size), ("seq_len", seq_len)):
            check_count(name, count, 1)

        async def job() -> float | None:
            async with self.model.changing.held():
                rows = self.model.tiling.rows(batch_size, seq_len, self.micro_batches)

                async def run(rows: Rows, kept: int) -> float | None:
                    return await self.engine.gemm_rate(self.model.demand(await self._recorded(kind, rows, kept)))

                return await self._keeping.run(kind, rows, run)

        return await self.engine.call(job())

    async def save(
        self, path: str | os.PathLike[str], *, wait: bool = True, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Write a checkpoint folder, put in place whole; it is a model folder too.

        wait=False: return as soon as all tiles are copied to RAM, and write them while training goes on; if host_memory
        has no room for the copies (12 bytes a parameter), this waits all the same. A save under way ends first; its
        error, if nobody asked for it, is raised here. ValueError if `path` is a file or holds other things;
        CheckpointError if the disk fails or is full; TypeError or ValueError for a data_state that would not come back
        equal. What was saved there before is then untouched. progress: called on the device's loop with how many bytes
        are written or read again for their checksums, and how many will be.
        """
        final, data_state = Path(path), kept(self.data_state)  # now: the caller may go on to change it

        async def job() -> None:
            async with self.model.changing.held():
                self.model.check_whole("save")
                await self.saved()
                await self.model.prepare_moments()
                training = Training(settings=self.settings, optimizer=self.optimizer, step_count=self.step_count,
                                    skipped_count=self.skipped_count, data_state=data_state)  # fmt: skip
                self._saving.begin(await save(self.model, training, final, wait=wait, progress=progress))

        await self.engine.call(job())

    async def saved(self) -> None:
        """Wait for a save under way, if there is one; raises its error, once. Cancelling this does not cancel the save.

        From any loop. The save is under the watchdog, so this wait is: StalledError names its folder.
        """
        await self._saving.ended()

    @property
    def saving(self) -> bool:
        """Whether a save goes on behind the training; once it is False, `saved` returns or raises at once."""
        return self._saving.is_under_way

    @classmethod
    async def load(cls, engine: Share, path: str | os.PathLike[str], *, update: str = "auto") -> Self:
        """A trainer with its model (`trainer.model`) from a checkpoint; goes on bitwise as if never stopped.

        update: as in Trainer; it is no part of a checkpoint. CheckpointError if it is damaged or no checkpoint. Warns if it
        was written by other libraries.
        """
        check_engine(engine)
        check_update(update)
        model, training = await engine.call(load(engine, path), undo=lambda loaded: loaded[0].release())
        trainer = cls(model, training.optimizer, update=update, **asdict(training.settings))
        trainer.skipped_count = training.skipped_count
        trainer.data_state = training.data_state
        return trainer

    async def _cut(self, tokens: ArrayLike, targets: ArrayLike) -> tuple[Rows, dict[str, Any], int]:
        """`_inputs`; in a thread if that takes longer than a thread to begin."""
        if isinstance(tokens, np.ndarray) and isinstance(targets, np.ndarray) and tokens.size + targets.size <= AT_ONCE:
            return self._inputs(tokens, targets)
        return await self.engine.compute(self._inputs, tokens, targets)

    def _inputs(self, tokens: ArrayLike, targets: ArrayLike) -> tuple[Rows, dict[str, Any], int]:
        """How a batch is cut, its inputs, and how many targets count."""
        config = self.model.config
        ids = check_tokens("tokens", tokens, config)
        wanted = check_tokens("targets", targets, config, ignored=True)
        batch, length = ids.shape
        rows = self.model.tiling.rows(batch, length, self.micro_batches)
        return rows, *loss_inputs(rows, ids, wanted)

    async def _placed(self, kind: str, rows: Rows, kept: int) -> Program:
        """The program of a step, its updates where they are to run."""
        return await self._recorded(kind, rows, kept, await self._on_host(kind, rows, kept))

    async def _recorded(self, kind: str, rows: Rows, kept: int, on_host: frozenset[Tile] = NOWHERE) -> Program:
        passes = None if len(rows.passes) == rows.micro_batches else len(rows.passes)
        return await self.model.recorded(kind, rows.batch, rows.length, rows.micro_batches, kept, on_host, passes)

    async def _on_host(self, kind: str, rows: Rows, kept: int) -> frozenset[Tile]:
        """The weight tiles to update on the host."""
        if self.update == "device" or not self.engine.has_link:
            return NOWHERE
        if self.update == "host":
            return frozenset(self.model.weights())
        program = await self._recorded(kind, rows, kept)
        if program not in self._chosen:
            self._chosen[program] = await self._choose(program, kind, rows, kept)
        return self._chosen[program]

    async def _choose(self, program: Program, kind: str, rows: Rows, kept: int) -> frozenset[Tile]:
        """The cheapest placement of the updates of `program`, which has all of them on the device."""
        demand, cap = self.model.demand(program), self.engine.device_cap
        if demand.resident_nbytes <= cap:
            return NOWHERE
        chosen = await self.engine.compute(tiles_to_update_on_host, program, demand, cap, self.engine.tiers.rates)
        if chosen:
            placed = await self._recorded(kind, rows, kept, chosen)
            try:
                self.engine.check_floor(self.model.demand(placed))
            except BudgetError:
                return NOWHERE  # RAM over a spill folder, too small for an operation of its own
        return chosen

    async def _prepare(self, program: Program) -> None:
        """Before the first step: refuse budgets that are too small, then make the moments."""
        if not self.model.has_moments:
            await self.engine.reserve(self.model.demand(program))
            await self.model.prepare_moments()

    async def _run(
        self, program: Program, inputs: dict[str, Any], count: int, report: Reporter, counted: Callable[[], None]
    ) -> StepReport:
        """Both parts of the step. report: makes its report of loss and gradient norm."""
        async with self.engine.exclusive():
            run = await self.engine.start(program, self.model.demand(program), inputs)
            try:
                await run.until("loss")
                await run.reported()
                loss = _total(program, run, "loss") / count
                if not math.isfinite(loss):
                    return await self._skip(run, report, loss, math.nan)
                await run.until(UPDATE)
                if self.clip_norm is not None:
                    await run.reported()
                    norm = math.sqrt(_total(program, run, "norm"))
                    if not math.isfinite(norm):
                        return await self._skip(run, report, loss, norm)
                    factor = min(1.0, self.clip_norm / (norm + 1e-6))
                    await run.put(program.inputs["hyper"], self.optimizer.hyper(self.step_count + 1, factor))
            except BaseException as error:
                await self._break_off(run, error)
                raise
            return await self._update(program, run, report, counted, loss)

    async def _update(
        self, program: Program, run: Job, report: Reporter, counted: Callable[[], None], loss: float
    ) -> StepReport:
        """The part that changes weights; a cancellation is raised after it has ended."""
        try:
            cancelled = await under_shield(run.finish())
        except BaseException as error:
            self.model.tear(f"step {self.step_count + 1} failed after its first update: {error}")
            await under_shield(run.abandon())
            if isinstance(error, StalledError):
                raise
            raise TornModelError(self.model.torn_message()) from error
        norm = math.sqrt(_total(program, run, "norm"))
        if not math.isfinite(norm):
            name = next(n for n, x in zip(program.numbers, run.numbers, strict=False) if not math.isfinite(x))
            self.model.tear(f"a gradient of step {self.step_count + 1} was not finite ({name})")
            raise TornModelError(self.model.torn_message() + "; clip_norm skips such steps instead")
        self.model.step_count += 1
        self.last_report = report(run, loss, norm)
        counted()
        if cancelled:
            raise asyncio.CancelledError
        return self.last_report

    async def _skip(self, run: Job, report: Reporter, loss: float, norm: float) -> StepReport:
        await self.model.abandon(run)
        if self.model.torn is not None:
            raise TornModelError(self.model.torn_message())
        self.skipped_count += 1
        return report(run, loss, norm, skipped=True)

    async def _break_off(self, run: Job, error: BaseException) -> None:
        """Before the first update: let what was enqueued run out; the model is as it was unless a tier lost bytes."""
        await under_shield(self.model.abandon(run, error))
        if isinstance(error, StalledError):
            return
        if self.model.torn is not None:
            raise TornModelError(self.model.torn_message()) from error
        if isinstance(error, Exception) and not isinstance(error, AsynctileError):
            raise DeviceError(
                f"step {self.step_count + 1} failed before it changed the model: {error!r}; the step can be repeated"
            ) from error

    def _report(
        self, before: StepTraffic, start: float, positions: int, count: int, run: Job, loss: float, norm: float, *,
        skipped: bool = False,
    ) -> StepReport:
        report = StepReport.between(
            before, self.engine.traffic(), step_s=time.perf_counter() - start, positions=positions, tokens=count,
            step=self.step_count, loss=loss, lr=self.optimizer.rate(self.step_count + int(skipped)), grad_norm=norm,
            skipped=skipped, played=run.played,
        )  # fmt: skip
        tell_step(self.engine, self.model.name, report)
        return report


def _total(program: Program, run: Job, label: str) -> float:
    """Sum, in float64 and in the program's order, of the numbers whose label begins with `label`."""
    values = run.numbers.tolist()
    return sum([values[index] for index in program.numbers_of(label)])
