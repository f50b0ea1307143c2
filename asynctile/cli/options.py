"""The options of a training run: one entry for each, with its default, its check and its help.

Covers `Options` and what follows from its entries. What a value means is option.py, what fits together fitting.py, which value
counts where several are said precedence.py. Nothing heavy is imported here: `--help` reads this table.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from asynctile.cli import values
from asynctile.cli.option import option, options_of

__all__ = ["CHANGEABLE", "CHECKS", "CONSTANT", "FORGOTTEN", "PLACEMENT", "SCHEDULES", "Options"]

CONSTANT = "constant"
#: How the learning rate goes on behind the warm-up; the first is the default.
SCHEDULES = ("cosine", "linear", CONSTANT)
#: Without --min-lr the learning rate ends at this share of its highest.
_LAST_RATE = 0.1

_DATA = "what is trained on what"
_PLACE = "where the bytes are (sizes such as 512MiB, or none; this changes no result)"
_STEP = "a step"
_OPTIMIZER = "the optimizer and its learning rate"
_LENGTH = "how far it goes"
_VALIDATION = "how it is validated"
_ARITHMETIC = "arithmetic (precision and tile are part of the result's last bits)"
_KEPT = "what is kept"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `asynctile train` was asked for. Sizes are bytes, rates bytes a second, times seconds."""

    data: str | None = option(
        None, values.name, "PATH",
        "a text file, a .jsonl of documents, one a line, a folder of such files, or a .bin of tokens as nanoGPT writes them "
        "(default: the source of Python's standard library)", group=_DATA)
    text_field: str = option(
        "text", values.name, "NAME", "which field of each line of a .jsonl is its text (default: {default})", group=_DATA)
    model: str | None = option(
        None, values.name, "NAME|DIR|FILE",
        "gpt2, gpt2-medium, gpt2-large or gpt2-xl for a new model of that shape, a config.json for another shape, or a model "
        "folder to start from its weights (default: a small new model)", group=_DATA, plans=True)
    tokenizer: str | None = option(
        None, values.name, "bytes|FILE|DIR|bpe:N",
        "bytes, a tokenizer.json, a vocab.json with merges.txt beside it, a folder with either, or a byte-pair encoding of N "
        "tokens trained on the data (default: that of the model folder, else bytes)", group=_DATA, plans=True)

    batch_size: int = option(
        12, values.count, "B", "sequences at once; a step is of so many, times --gradient-accumulation (default: {default})",
        group=_STEP, plans=True)
    gradient_accumulation: int = option(
        1, values.count, "N", "batches whose gradients make one step together (default: {default})", group=_STEP, plans=True)
    micro_batches: int = option(
        1, values.count, "M", "parts that each batch is cut into, to need less memory at once (default: {default})",
        group=_STEP, plans=True)
    seq_len: int | None = option(
        None, values.count, "T", "tokens a sequence (default: as many as the model takes)", group=_STEP, plans=True)
    clip_norm: float | None = option(
        None, values.positive, "NORM", "limit of the gradient's norm; all gradients are kept until it is known (default: none)",
        group=_STEP, plans=True)
    seed: int = option(
        1, values.natural, "N", "of the new weights and of the order of the data (default: {default})", group=_STEP)

    lr: float = option(
        1e-3, values.positive, "RATE", "the highest learning rate, behind the warm-up (default: {default})", group=_OPTIMIZER,
        changeable=True)
    schedule: str = option(
        SCHEDULES[0], values.one_of(*SCHEDULES), "NAME",
        "how the learning rate falls from there to --min-lr at the last step: cosine, linear, or constant, which stays at --lr "
        "(default: {default})", group=_OPTIMIZER, changeable=True)
    min_lr: float | None = option(
        None, values.fraction, "RATE", "the learning rate of the last step (default: a tenth of --lr)", group=_OPTIMIZER,
        changeable=True)
    decay_steps: int | None = option(
        None, values.count, "N",
        "the step at which the learning rate comes to --min-lr, and from which it stays there (default: the last)",
        group=_OPTIMIZER, changeable=True)
    warmup: int | None = option(
        None, values.natural, "N", "steps until the learning rate is at its highest (default: a tenth of all, at most 100)",
        group=_OPTIMIZER, changeable=True)
    weight_decay: float = option(
        0.1, values.fraction, "RATE", "AdamW's decay of weights (default: {default})", group=_OPTIMIZER)
    beta1: float = option(
        0.9, values.below_one, "X", "AdamW's decay of its first moment, the mean (default: {default})", group=_OPTIMIZER)
    beta2: float = option(
        0.95, values.below_one, "X", "AdamW's decay of its second moment, the square (default: {default})", group=_OPTIMIZER)
    eps: float = option(
        1e-8, values.positive, "X", "what AdamW adds to the root of the second moment (default: {default})", group=_OPTIMIZER)

    steps: int = option(2000, values.count, "N", "steps in all (default: {default})", group=_LENGTH, changeable=True)
    epochs: float | None = option(
        None, values.positive, "X", "in place of --steps: as many steps as take the tokens to train on X times", group=_LENGTH,
        changeable=True)
    max_time: float | None = option(
        None, values.duration, "TIME",
        "end this call after so long (90s, 30m, 1h30m, 1:30:00), behind the step or validation under way and with a "
        "checkpoint; --resume goes on", group=_LENGTH, forgotten=True)

    validation_data: str | None = option(
        None, values.name, "PATH", "text to validate on, as for --data (default: a part of --data that is not trained on)",
        group=_VALIDATION)
    validation_share: float | None = option(
        None, values.share, "X",
        "which part of --data is held out, from its end (default: 0.05, at most 131,072 tokens)", group=_VALIDATION)
    validation_tokens: int | None = option(
        None, values.count, "N",
        "tokens of it that each validation is on, the same each time and spread over it (default: those of 20 batches, at most "
        "16,384)",
        group=_VALIDATION)
    validate_every: int | None = option(
        None, values.count, "N",
        "steps between validations; there is one before the first step and one behind the last (default: a tenth of all steps)",
        group=_VALIDATION, changeable=True)
    stop_after: int | None = option(
        None, values.count_or_none, "N", "end the run after so many validations without a lower loss (default: none)",
        group=_VALIDATION, changeable=True)
    sample_tokens: int = option(
        0, values.natural, "N",
        "tokens of a text that the model writes at each validation, shown and kept in samples.jsonl (default: {default})",
        group=_VALIDATION, changeable=True)

    device: str = option(
        "auto", values.name, "NAME", "auto, cpu, emulated or cuda:N (default: {default})", group=_PLACE, changeable=True,
        plans=True)
    device_memory: int | None = option(
        None, values.size_or_none, "SIZE", "the most bytes to use on the device (default: what is there)", group=_PLACE,
        changeable=True, plans=True)
    host_memory: int | None = option(
        None, values.size_or_none, "SIZE",
        "the most RAM that tiles may take; on cpu, RAM is the device (default: about four fifths of what the machine, its "
        "control groups and ulimit leave)", group=_PLACE, changeable=True, plans=True)
    spill: str | None = option(
        None, values.name_or_none, "DIR",
        "a folder that exists, on a fast disk, for what --host-memory cannot hold; one run at a time uses it and leaves "
        "nothing there; named again when a run goes on", group=_PLACE, changeable=True, config=False, plans=True)
    spill_limit: int | None = option(
        None, values.size_or_none, "SIZE",
        "the most bytes to use in the spill folder, set aside at once (default: what `asynctile plan` says is needed)",
        group=_PLACE, changeable=True, plans=True)
    link_rate: int | None = option(
        None, values.size_or_none, "SIZE",
        "bytes a second each way between RAM and the emulated device (default: as fast as it goes)", group=_PLACE,
        changeable=True, plans=True)
    prefetch: int = option(
        2, values.natural, "N",
        "how far ahead tiles are fetched, in units of 4 tiles; 0 shows the run without overlap (default: {default})",
        group=_PLACE, changeable=True, plans=True)
    update: str = option(
        "auto", values.name, "PLACE",
        "where AdamW runs: on the device, on the host (in RAM, so that its moments never move), or auto, which measures what "
        "is faster; on cpu it is the same (default: {default})", group=_PLACE, changeable=True, plans=True)

    precision: str = option(
        "fp32", values.name, "NAME",
        "fp32; on a GPU also tf32, or bf16 with float32 master weights and moments (default: {default})", group=_ARITHMETIC,
        changeable=True, plans=True)
    tile: int | None = option(
        None, values.count, "N", "rows and columns of a tile (default: chosen for you)", group=_ARITHMETIC, plans=True)
    recompute: bool | None = option(
        None, None, "",
        "compute all activations again in backward, or keep them all; no result depends on it (default: keep those of as many "
        "layers as fit under the caps, or as the link carries beside compute)", group=_ARITHMETIC, plans=True)

    out: str | None = option(
        None, values.name, "DIR", "the folder of the run (default: a new one in runs/, named after the time)", group=_KEPT,
        forgotten=True, config=False, plans=True)
    save_every: int = option(500, values.count, "N", "steps between checkpoints (default: {default})", group=_KEPT,
                             changeable=True)
    keep: int = option(2, values.count, "N", "how many of the newest checkpoints stay (default: {default})", group=_KEPT,
                       changeable=True)
    tensorboard: bool | None = option(
        None, None, "", "write event files for TensorBoard in the folder of the run (needs the extra tensorboard)", group=_KEPT,
        changeable=True)
    callback: tuple[str, ...] = option(
        (), values.name_of_class, "MODULE:CLASS",
        "tell a class of your own of every step, validation and checkpoint, see asynctile.callbacks; a module of the current "
        "folder or of the environment; may be given several times, and again when a run goes on", group=_KEPT, forgotten=True,
        config=False, repeatable=True)
    trace: str | None = option(
        None, values.name, "FILE",
        "write what ran when, and what it waited for, for ui.perfetto.dev and chrome://tracing; while it is written steps take "
        "longer", group=_KEPT, forgotten=True, config=False)
    trace_steps: tuple[int, int | None] | None = option(
        None, values.steps, "A:B", "trace steps A to B alone, and go on as usual behind them (default: all that is done)",
        group=_KEPT, forgotten=True, config=False)

    @property
    def recomputing(self) -> bool | str:
        """`recompute` as a Trainer takes it."""
        from asynctile.layers.activations import AUTO

        return AUTO if self.recompute is None else self.recompute

    @property
    def sequences(self) -> int:
        """Of a step."""
        return self.batch_size * self.gradient_accumulation

    @property
    def parts(self) -> int:
        """Micro-batches of a step."""
        return self.micro_batches * self.gradient_accumulation

    @property
    def last_lr(self) -> float:
        return self.lr * _LAST_RATE if self.min_lr is None else self.min_lr

    @property
    def last_decay_step(self) -> int:
        """At which the learning rate comes to its last."""
        return self.decay_steps or self.steps

    @property
    def warmup_steps(self) -> int:
        return min(100, self.steps // 10) if self.warmup is None else self.warmup

    def to_json(self) -> dict[str, Any]:
        """What a run remembers."""
        return {name: value for name, value in asdict(self).items() if name not in FORGOTTEN}


_TABLE = options_of(Options)
#: How each is checked, typed or remembered; switches, which have no value, are not among them.
CHECKS = {name: entry.check for name, entry in _TABLE.items() if entry.check is not None}
#: Where bytes are, how long, how often and how fast, so a resumed run may set them anew. None of these changes a bit of a step,
#: but for the learning rate, which a line says, and a device of another kind with its precision: checkpoints hold float32, and
#: warn of the change.
CHANGEABLE = frozenset(name for name, entry in _TABLE.items() if entry.changeable)
#: Which file is written, for instance, is said by who calls, each time, and by no file.
FORGOTTEN = frozenset(name for name, entry in _TABLE.items() if entry.forgotten)
#: What an engine is opened with.
PLACEMENT = ("device", "device_memory", "host_memory", "spill", "spill_limit", "link_rate", "prefetch", "precision")
