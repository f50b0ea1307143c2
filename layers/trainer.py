"""The trainer: steps over a model, and how a step ends when it is cancelled or fails.

A step has two parts. Up to the program's mark "update" the model is unchanged: a step that is cancelled or fails leaves it as
it was. From there on weights change tile by tile: the step runs to its end under shield, and a failure leaves the model torn.
Checkpoints are written in checkpoint.py; what a step computes is recorded in step.py.

Long because a step is followed here from its inputs to its report, through every way in which it may end.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asynctile.errors import AsynctileError, DeviceError, StalledError, TornModelError
from asynctile.execute.job import Job
from asynctile.layers.activations import AUTO
from asynctile.layers.batch import Batches, check_positions, check_tokens, loss_inputs
from asynctile.layers.carriers import table
from asynctile.layers.checkpoint import load, save
from asynctile.layers.config import check_count
from asynctile.layers.data_state import kept
from asynctile.layers.feed import Steps
from asynctile.layers.guesses import answering
from asynctile.layers.keeping import Keeping
from asynctile.layers.lora import LoRA
from asynctile.layers.model import Model, model_of, model_state_of
from asynctile.layers.nodes import Nodes
from asynctile.layers.optimizer import AdamW
from asynctile.layers.placing import Placing
from asynctile.layers.report import StepReport
from asynctile.layers.requests import check_kind
from asynctile.layers.rows import Rows
from asynctile.layers.saving import Saving
from asynctile.layers.settings import Settings, Training
from asynctile.layers.telling import tell_data_ended, tell_step
from asynctile.layers.terms import terms_of
from asynctile.layers.tuning import checked_freeze
from asynctile.layers.update_placement import check_update
from asynctile.loop.thread import under_shield
from asynctile.measure.rates import measure_gemms
from asynctile.measure.statistics import StepTraffic
from asynctile.program.precision import compute_dtype
from asynctile.program.program import UPDATE, Program
from asynctile.share import Share, runtime_of

#: A batch of at most this many numbers is checked and cut on the loop: a thread would take as long to begin.
AT_ONCE = 1 << 16

#: Trainer._report, with the arguments that are known when a step begins.
Reporter = Callable[..., StepReport]


@answering
class Trainer:
    """Trains a model with AdamW, step by step.

    model: the model to train. optimizer: an AdamW; None: AdamW().
    clip_norm: scale gradients to at most this global norm; updates are then a second pass. None: update each tile as soon as
        its gradient is complete.
    micro_batches: parts of a batch that share no row tile and go through a layer one after another; under a cap, a batch may
        take more passes.
    replicas: groups of a batch's sequences, a power of two. Each replica adds up gradients of its own, in micro_batches parts,
        and a fixed binary tree adds those of all replicas. replicas x micro_batches must divide the batch. The devices of an
        engine share the replicas, so there must be at least as many; results do not depend on the number of devices.
    recompute: True computes activations again in backward, False keeps them. "auto" keeps those of the last layers, as many as
        fit under the caps beside everything else; where tiles have to move anyway, as many as leave the link faster than
        compute. No result depends on it.
    update: where AdamW runs: "device", "host" (in RAM, so that moments never move and a gradient moves once) or "auto", which
        splits by the engine's rates. Without effect on cpu. A node decides so about the weights that it owns.
    adapters: new adapters for the model, which are then trained alone. None: those that it has, or the whole model.
    freeze: patterns of tensor names, as in the module fnmatch and with or without the family's prefix, such as ("wte*",).
        These tensors are not trained. (): as for the model's other trainers.

    ValueError for any other setting, TypeError for another object.

    Moments and step_count belong to the model: another Trainer of it goes on with both, under settings of its own, and several
    may take turns. A learning-rate schedule counts the updates of the model. To begin anew, call save_pretrained and load that.
    So do adapters and frozen tensors belong to the model, which has no moments of a frozen tensor: ValueError for other ones
    after the first step.

    skipped_count: steps that this trainer skipped because a loss or a clipped gradient was not finite.
    last_report: the report of this trainer's last step that counted, also if its caller was cancelled; None before the first.
    data_state: a dict of the caller's, such as where the data stands. It holds JSON values by string keys; checkpoints save and
        restore it.
    """

    def __init__(
        self,
        model: Model,
        optimizer: AdamW | None = None,
        *,
        clip_norm: float | None = None,
        micro_batches: int = 1,
        replicas: int = 1,
        recompute: bool | str = AUTO,
        update: str = "auto",
        adapters: LoRA | None = None,
        freeze: Collection[str] = (),
    ) -> None:
        state = model_state_of(model)
        if optimizer is not None:
            check_kind("optimizer", optimizer, AdamW, "an AdamW, or None for AdamW()")
        if adapters is not None:
            check_kind("adapters", adapters, LoRA, "a LoRA, or None")
        self._settings = Settings(
            clip_norm=clip_norm, micro_batches=micro_batches, replicas=replicas, recompute=recompute)
        self._nodes, self._terms = Nodes(state.runtime), partial(terms_of, state, self._settings)
        carriers = table(replicas, self._nodes.devices)
        check_update(update)
        state.train(adapters, checked_freeze(freeze))
        if adapters is not None and (excess := adapters.excess(model.config)) is not None:
            warnings.warn(excess, stacklevel=2)
        if model.config.has_dropout:
            warnings.warn("the model's config asks for dropout, which is kept for saving and never applied", stacklevel=2)
        self.model = model
        self._state = state
        self._runtime = state.runtime
        self.optimizer: AdamW = optimizer if optimizer is not None else AdamW()
        self.skipped_count: int = 0
        self.last_report: StepReport | None = None
        self.data_state: dict[str, Any] = {}
        self._keeping = Keeping(state, self._settings.recompute, self._nodes)
        self._placing = Placing(state, self._nodes, carriers, update)
        self._saving = Saving(self._runtime)

    def __repr__(self) -> str:
        """Return the model, the step count and the settings."""
        settings = ", ".join(f"{name}={value!r}" for name, value in asdict(self._settings).items())
        return f"<{type(self).__name__} of {self.model.name} after step {self.step_count}: {self.optimizer!r}, {settings}>"

    @property
    def step_count(self) -> int:
        """The number of updates of the model, by all its trainers."""
        return self._state.step_count

    @property
    def clip_norm(self) -> float | None:
        """The global norm that gradients are scaled down to, as given; None: they are not clipped."""
        return self._settings.clip_norm

    @property
    def micro_batches(self) -> int:
        """The number of parts of a batch, or of each replica's share of it, as given."""
        return self._settings.micro_batches

    @property
    def replicas(self) -> int:
        """The number of groups of sequences with gradients of their own, as given."""
        return self._settings.replicas

    @property
    def recompute(self) -> bool | str:
        """Whether backward computes activations again, as given: True, False or "auto"."""
        return self._settings.recompute

    @property
    def update(self) -> str:
        """Where AdamW runs, as given: "device", "host" or "auto"."""
        return self._placing.update

    @property
    def freeze(self) -> tuple[str, ...]:
        """The patterns of the model's frozen tensors, as given to this trainer or another one."""
        return self._state.tuning.freeze

    async def step(self, tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None = None) -> StepReport:
        """Update the model once, from int arrays (B, T); targets of -100 are ignored.

        positions: int array (B, T) for sequences of several examples: 0 where an example begins, then 1, 2, ... up to the next.
        A token has this position in the model, and attention stays within its example. None: each sequence is one example.

        ValueError or TypeError for wrong arrays; BudgetError, before any work, if the caps are too small; DeviceError if an
        operation failed and the model is as it was; TornModelError if the model is torn. A step that is cancelled may have
        counted all the same: step_count and last_report tell.
        """
        return await self._step_for(lambda: None, tokens, targets, positions)

    async def _step_for(
        self, counted: Callable[[], None], tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None = None
    ) -> StepReport:
        """Do `step`. counted: called on the device's loop once the step has counted, also if its caller was cancelled."""
        return await self._runtime.call(self._step(counted, tokens, targets, positions))

    async def _step(
        self, counted: Callable[[], None], tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None
    ) -> StepReport:
        kind = self._kind
        async with self._state.changing.held():
            self._state.check_whole("step")
            await self._state.tuned()
            step = self.step_count + 1
            rows, inputs, count = await self._begun(f"step {step}", tokens, targets, positions, step)

            async def run(rows: Rows, kept: int) -> StepReport:
                program = await self._placing.recorded(kind, rows, kept, await self._placing.on_host(kind, rows, kept))
                await self._prepare(program)
                report = partial(self._report, self._runtime.traffic(), time.perf_counter(), rows.batch * rows.length, count)
                return await self._run(program, inputs, count, report, counted)

            try:
                report = await self._keeping.run(kind, rows, self.update, run)
            except BaseException as error:
                if self.step_count < step:  # else it has counted on all nodes, and only its caller was cancelled
                    self._nodes.give_up(error)
                raise
            await self._state.publish()
            return report

    def run(self, batches: Batches, *, steps: int | None = None) -> Steps:
        """Step over batches: an iterable or async iterable of (tokens, targets). `async for report in trainer.run(batches)`.

        A batch of sequences of several examples is (tokens, targets, positions), as for `step`.

        steps: the most steps to make; None: as many as there are batches. A plain iterable is advanced in a thread of its own,
        one batch when a step wants it and never ahead. After a cancellation, iterate over the same run again: a batch that was
        taken, and whose step has not counted, comes next. If the batches end before `steps`, the run ends there, with a warning
        in the log and the event DataEnded. When this is called: TypeError for other batches, ValueError for other steps.
        """
        if steps is not None:
            check_count("steps", steps, 0)
        return Steps(self._runtime.life, self._step_for, batches, steps,
                     partial(tell_data_ended, self._runtime, self.model.name))

    async def gradients(
        self, tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return the gradient of every trained tensor by name, float32; nothing is updated. positions: as for `step`.

        Several nodes call this together with the same batch, and each gets all gradients. An error on one ends the training on
        all, except that all may call again after a node has refused its own batch.
        """
        async def job() -> dict[str, NDArray[np.float32]]:
            async with self._state.changing.held():
                await self._state.tuned()
                what = f"gradients after step {self.step_count}"
                rows, inputs, _ = await self._begun(what, tokens, targets, positions)
                outputs = dict[str, NDArray[np.float32]]()

                async def run(rows: Rows, kept: int) -> None:
                    program = await self._placing.recorded("gradients", rows, kept)
                    await self._state.run(program, {name: inputs[name] for name in program.inputs}, outputs)

                try:
                    outputs |= {item.name: np.empty(item.shape, np.float32) for item in self._state.parameters.trained()}
                    await self._keeping.run("gradients", rows, self.update, run)
                    await self._nodes.tell(f"end of {what}", b"")  # what was sent may not have arrived
                except BaseException as error:
                    self._nodes.give_up(error)
                    raise
                return outputs

        return await self._runtime.call(job())

    async def gemm_rate(self, batch_size: int, seq_len: int) -> float | None:
        """Measure FLOP/s of matrix products on all devices, to judge steps by; None if a probe would evict tiles.

        Takes some tens of milliseconds, in memory that steps of such batches use. Several nodes call this together. BudgetError
        as `step`.
        """
        for name, count in (("batch_size", batch_size), ("seq_len", seq_len)):
            check_count(name, count)
        runtime = self._runtime

        async def job() -> float | None:
            async with self._state.changing.held():
                await self._state.tuned()
                rows = self._rows(batch_size, seq_len)

                async def run(rows: Rows, kept: int) -> float | None:
                    demand = self._state.demand(await self._placing.recorded(self._kind, rows, kept))
                    async with runtime.exclusive():
                        await runtime.cut(demand)
                        rate = await measure_gemms(runtime.tiers, compute_dtype(runtime.life.precision))
                    return None if rate is None else rate * runtime.side_by_side

                try:
                    return await self._keeping.run(self._kind, rows, self.update, run)
                except BaseException as error:
                    self._nodes.give_up(error)
                    raise

        return await runtime.call(job())

    async def save(
        self, path: str | os.PathLike[str], *, wait: bool = True, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Write a checkpoint folder, which is put in place whole; it is a model folder too, or the folder of an adapter.

        A checkpoint of an adapter holds no weights of the base, but names the folder that the base was loaded from.

        wait: False returns as soon as all tiles are copied to RAM, and writes them while training goes on. If host_memory has
            no room for the copies (12 bytes a parameter), this waits all the same.
        progress: called on the device's loop with the bytes written, or read again for their checksums, so far and in all.
            Of several nodes, each counts the part that it writes.

        A save under way ends first; its error is raised here unless `saved` has raised it. ValueError if `path` is a file or
        holds other things, or if the base of an adapter is in no folder; CheckpointError if the disk fails or is full;
        TornModelError if the model is torn; TypeError or ValueError for a data_state that would not come back equal. An older
        checkpoint at `path` is then untouched.
        """
        final, data_state = Path(path), kept(self.data_state)  # now: the caller may change it later

        async def job() -> None:
            async with self._state.changing.held():
                self._state.check_whole("save")
                await self._state.tuned()
                await self.saved()
                await self._state.prepare_moments()
                training = Training(settings=self._settings, optimizer=self.optimizer, step_count=self.step_count,
                                    skipped_count=self.skipped_count, data_state=data_state)  # fmt: skip
                self._saving.begin(await save(self._state, training, final, wait=wait, progress=progress))

        await self._runtime.call(job())

    async def saved(self) -> None:
        """Wait for a save under way, if there is one; raises its error, once. Cancelling this does not cancel the save.

        From any loop. The watchdog covers the save and so this wait: StalledError names its folder.
        """
        await self._saving.ended()

    @property
    def saving(self) -> bool:
        """Whether a save goes on behind the training. Once it is False, `saved` returns or raises at once."""
        return self._saving.is_under_way

    @classmethod
    async def load(
        cls, engine: Share, path: str | os.PathLike[str], *, update: str = "auto", base: str | os.PathLike[str] | None = None
    ) -> Self:
        """Load a trainer and its model (`trainer.model`) from a checkpoint; training goes on bitwise as if never stopped.

        update: as for Trainer; checkpoints do not hold it.
        base: for a checkpoint of an adapter, the folder of its base model; None: the folder where the base was.

        CheckpointError if the folder is damaged or not a checkpoint, or if the base is another one; ValueError for a base of a
        checkpoint that needs none; a warning if other libraries wrote the checkpoint.
        """
        runtime = runtime_of(engine)
        check_update(update)
        state, training = await runtime.call(load(runtime, path, base), undo=lambda loaded: loaded[0].release())
        trainer = cls(model_of(engine, state), training.optimizer, update=update, **asdict(training.settings))
        trainer.skipped_count = training.skipped_count
        trainer.data_state = training.data_state
        return trainer

    async def _begun(
        self, what: str, tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None, step: int | None = None
    ) -> tuple[Rows, dict[str, Any], int]:
        """Return `_inputs`, with the learning rate of a step, once all nodes begin `what` alike. A refusal is told to all."""
        try:
            rows, inputs, count = await self._cut(tokens, targets, positions)
            if step is not None:
                inputs["hyper"] = self.optimizer.hyper(step)
        except Exception as error:
            await self._nodes.begin(what, error, self._terms)
            raise
        await self._nodes.begin(what, inputs, self._terms)
        return rows, inputs, count

    async def _cut(
        self, tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None
    ) -> tuple[Rows, dict[str, Any], int]:
        """Return `_inputs`, computed in a thread if that takes longer than a thread takes to begin."""
        sizes = [given.size if isinstance(given, np.ndarray) else AT_ONCE + 1
                 for given in (tokens, targets, positions) if given is not None]  # fmt: skip
        if sum(sizes) <= AT_ONCE:
            return self._inputs(tokens, targets, positions)
        return await self._runtime.compute(self._inputs, tokens, targets, positions)

    def _inputs(
        self, tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None
    ) -> tuple[Rows, dict[str, Any], int]:
        """Return how a batch is cut, its inputs, and how many targets count."""
        config = self._state.config
        ids = check_tokens("tokens", tokens, config)
        wanted = check_tokens("targets", targets, config, ignored=True)
        places = None if positions is None else check_positions(positions, ids.shape)
        rows = self._rows(*ids.shape, packed=places is not None)
        return rows, *loss_inputs(rows, ids, wanted, places)

    @property
    def _kind(self) -> str:
        """The kind of the programs of steps (step.py)."""
        return "step" if self.clip_norm is None else "step_clipped"

    def _rows(self, batch: int, length: int, *, packed: bool = False) -> Rows:
        return self._state.tiling.rows(batch, length, self.micro_batches, self.replicas, packed)

    async def _numbers(self, mark: str, program: Program, run: Job) -> NDArray[np.float64]:
        """Return the numbers that the step has reported up to a mark, or its end, on all nodes."""
        return await self._nodes.numbers(f"{mark} of step {self.step_count + 1}", program, run.numbers)

    async def _prepare(self, program: Program) -> None:
        """Create the moments before the first step, after refusing budgets that are too small."""
        if not self._state.has_moments:
            await self._runtime.reserve(self._state.demand(program))
            await self._state.prepare_moments()

    async def _run(
        self, program: Program, inputs: dict[str, Any], count: int, report: Reporter, counted: Callable[[], None]
    ) -> StepReport:
        """Run both parts of the step. count: of targets. report: makes the report from loss and gradient norm."""
        async with self._runtime.exclusive():
            own = inputs if self._nodes.count == 1 else {name: inputs[name] for name in program.inputs}
            run = await self._runtime.start(program, self._state.demand(program), own)
            try:
                await run.until("loss")
                await run.reported()
                loss = _total(program, await self._numbers("loss", program, run), "loss") / count
                if not math.isfinite(loss):
                    return await self._skip(run, report, loss, math.nan)
                await run.until(UPDATE)
                if self.clip_norm is not None:
                    await run.reported()
                    norm = math.sqrt(_total(program, await self._numbers("norm", program, run), "norm"))
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
        """Run the part that changes weights; a cancellation is raised after it has ended."""
        async def finish() -> NDArray[np.float64]:
            await run.finish()
            return await self._numbers("end", program, run)

        finishing = asyncio.ensure_future(finish())
        try:
            cancelled = await under_shield(finishing)
        except BaseException as error:
            self._nodes.give_up(error)
            self._state.tear(f"step {self.step_count + 1} failed after its first update: {error}")
            await under_shield(run.abandon())
            if isinstance(error, StalledError):
                raise
            raise TornModelError(self._state.torn_message()) from error
        numbers = finishing.result()
        norm = math.sqrt(_total(program, numbers, "norm"))
        if not math.isfinite(norm):
            name = next(n for n, x in zip(program.numbers, numbers, strict=False) if not math.isfinite(x))
            self._state.tear(f"a gradient of step {self.step_count + 1} was not finite ({name})")
            raise TornModelError(self._state.torn_message() + "; clip_norm skips such steps instead")
        self._state.count_step()
        self.last_report = report(run, loss, norm)
        counted()
        if cancelled:
            raise asyncio.CancelledError
        return self.last_report

    async def _skip(self, run: Job, report: Reporter, loss: float, norm: float) -> StepReport:
        await self._state.abandon(run)
        if self._state.torn is not None:
            raise TornModelError(self._state.torn_message())
        self.skipped_count += 1
        return report(run, loss, norm, skipped=True)

    async def _break_off(self, run: Job, error: BaseException) -> None:
        """Drain the enqueued work of a step that ends before its first update; the model is torn only if a tier lost bytes."""
        self._nodes.give_up(error)
        await under_shield(self._state.abandon(run, error))
        if isinstance(error, StalledError):
            return
        if self._state.torn is not None:
            raise TornModelError(self._state.torn_message()) from error
        if isinstance(error, Exception) and not isinstance(error, AsynctileError):
            raise DeviceError(
                f"step {self.step_count + 1} failed before it changed the model: {error!r}; the step can be repeated"
            ) from error

    def _report(
        self, before: StepTraffic, start: float, positions: int, count: int, run: Job, loss: float, norm: float, *,
        skipped: bool = False,
    ) -> StepReport:
        report = StepReport.between(
            before, self._runtime.traffic(), step_s=time.perf_counter() - start, positions=positions, tokens=count,
            step=self.step_count, loss=loss, lr=self.optimizer.rate(self.step_count + int(skipped)), grad_norm=norm,
            skipped=skipped, played=run.played,
        )  # fmt: skip
        tell_step(self._runtime, self._state.name, report)
        return report


def _total(program: Program, numbers: NDArray[np.float64], label: str) -> float:
    """Return the sum of the numbers whose label begins with `label`, in float64 and in the program's order."""
    values = numbers.tolist()
    return sum([values[index] for index in program.numbers_of(label)])
