"""The options of a training run, each with its default, its check and its help.

Covers `Options` and what follows from single entries. option.py says what the properties of an entry mean, fitting.py which
values fit together, precedence.py which value wins when an option is set in several places. This module imports nothing heavy,
because `--help` reads its table.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from asynctile.cli import values
from asynctile.cli.option import option, options_of
from asynctile.nodes.tcp_exchange import TCP

__all__ = ["CHANGEABLE", "CHECKS", "CONSTANT", "FORGOTTEN", "PLACEMENT", "REPEATABLE", "SCHEDULES", "Options"]

CONSTANT = "constant"
#: How the learning rate continues after the warm-up. The first is the default.
SCHEDULES = ("cosine", "linear", CONSTANT)
#: Without --min-lr the learning rate ends at this share of its peak.
_LAST_RATE = 0.1

_DATA = "data and model"
_PLACE = "device and memory (sizes are written like 512MiB, or none; the memory options do not change the result)"
_TUNING = "trained part of the model"
_STEP = "training step"
_OPTIMIZER = "optimizer and learning rate"
_LENGTH = "length of the run"
_VALIDATION = "validation"
_NODES = "several nodes (processes on one or several machines; the number of nodes does not change the result)"
_ARITHMETIC = "arithmetic (precision and tile change the last bits of the result)"
_KEPT = "output"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `asynctile train`. Sizes are in bytes, rates in bytes per second, times in seconds."""

    data: str | None = option(
        None, values.name, "PATH",
        "text to train on: a text file, a .jsonl file with one document per line, a folder of such files, or a .bin file of "
        "tokens in nanoGPT's format; lines with messages, or with prompt and completion, are chats, and only their answers "
        "are learned (default: the source of Python's standard library)", group=_DATA)
    text_field: str = option(
        "text", values.name, "NAME", "field of each .jsonl line that holds the text (default: {default})", group=_DATA)
    model: str | None = option(
        None, values.name, "NAME|DIR|FILE",
        "model to train: gpt2, gpt2-medium, gpt2-large or gpt2-xl for a new model of that size, a config.json for a new model "
        "of another shape or family, or a model folder to start from its weights (default: a small new model)", group=_DATA,
        plans=True)
    tokenizer: str | None = option(
        None, values.name, "bytes|FILE|DIR|bpe:N",
        "bytes, a tokenizer.json, a vocab.json with merges.txt beside it, a folder with either, or bpe:N to train a byte-pair "
        "encoding of N tokens on the data (default: the model folder's tokenizer, else bytes)", group=_DATA, plans=True)

    chat_template: str | None = option(
        None, values.name, "FILE", "Jinja template of chats (default: that of the tokenizer's folder)", group=_DATA)

    lora: str | None = option(
        None, values.adapter, "r=N,alpha=X,targets=NAME+NAME",
        "train an adapter on the frozen weights of the model that --model names: of rank r, its outputs scaled by alpha / r, "
        "on the layers whose names end with a target; each setting may be left out, for r=16, alpha=32 and the targets of "
        "PEFT, c_attn of a GPT-2, else q_proj+v_proj (default: none)", group=_TUNING, plans=True)
    freeze: tuple[str, ...] = option(
        (), values.name, "PATTERN",
        "do not train the tensors whose names match, such as 'wte*' or '*.bias'; * stands for any characters; may be repeated "
        "(default: none)", group=_TUNING, plans=True, repeatable=True)

    batch_size: int = option(
        12, values.count, "B", "sequences per batch; a step trains on --gradient-accumulation batches (default: {default})",
        group=_STEP, plans=True)
    gradient_accumulation: int = option(
        1, values.count, "N", "batches whose gradients add up to one step (default: {default})", group=_STEP, plans=True)
    micro_batches: int = option(
        1, values.count, "M",
        "parts to split each batch into, or each replica's share of it, so that a step needs less memory (default: {default})",
        group=_STEP, plans=True)
    replicas: int = option(
        1, values.power_of_two, "R",
        "groups of each batch's sequences with gradients of their own, which a fixed tree adds; 1, 2, 4, 8 or a higher power "
        "of two (default: {default})", group=_STEP, plans=True)
    seq_len: int | None = option(
        None, values.count, "T", "tokens per sequence (default: the most that the model takes, but at most 2048)", group=_STEP,
        plans=True)
    clip_norm: float | None = option(
        None, values.positive, "NORM", "clip the gradient norm to NORM; gradients are kept until it is known (default: none)",
        group=_STEP, plans=True)
    seed: int = option(
        1, values.natural, "N", "seed of the new weights and of the data order (default: {default})", group=_STEP)

    lr: float = option(
        1e-3, values.positive, "RATE", "peak learning rate, reached after the warm-up (default: {default})", group=_OPTIMIZER,
        changeable=True)
    schedule: str = option(
        SCHEDULES[0], values.one_of(*SCHEDULES), "NAME",
        "how the learning rate falls from --lr to --min-lr after the warm-up: cosine, linear, or constant (it stays at --lr) "
        "(default: {default})", group=_OPTIMIZER, changeable=True)
    min_lr: float | None = option(
        None, values.fraction, "RATE", "learning rate at the end of the schedule (default: a tenth of --lr)", group=_OPTIMIZER,
        changeable=True)
    decay_steps: int | None = option(
        None, values.count, "N",
        "step at which the learning rate reaches --min-lr, to stay there (default: the last step)",
        group=_OPTIMIZER, changeable=True)
    warmup: int | None = option(
        None, values.natural, "N", "steps over which the learning rate rises to --lr (default: a tenth of all, at most 100)",
        group=_OPTIMIZER, changeable=True)
    weight_decay: float = option(
        0.1, values.fraction, "RATE", "weight decay of AdamW (default: {default})", group=_OPTIMIZER)
    beta1: float = option(
        0.9, values.below_one, "X", "AdamW's decay rate of the mean gradient (default: {default})", group=_OPTIMIZER)
    beta2: float = option(
        0.95, values.below_one, "X", "AdamW's decay rate of the mean squared gradient (default: {default})", group=_OPTIMIZER)
    eps: float = option(
        1e-8, values.positive, "X", "epsilon of AdamW, added to its denominator (default: {default})", group=_OPTIMIZER)

    steps: int = option(2000, values.count, "N", "training steps in total (default: {default})", group=_LENGTH, changeable=True)
    epochs: float | None = option(
        None, values.positive, "X", "instead of --steps: train for X passes over the training tokens", group=_LENGTH,
        changeable=True)
    max_time: float | None = option(
        None, values.duration, "TIME",
        "stop after this time (90s, 30m, 1h30m, 1:30:00): finish the current step or validation and save a checkpoint; "
        "--resume continues", group=_LENGTH, forgotten=True)

    validation_data: str | None = option(
        None, values.name, "PATH", "text to validate on, in any form that --data takes (default: a held-out part of --data)",
        group=_VALIDATION)
    validation_share: float | None = option(
        None, values.share, "X",
        "share of --data, at its end, to hold out for validation (default: 0.05, at most 131,072 tokens)", group=_VALIDATION)
    validation_tokens: int | None = option(
        None, values.count, "N",
        "tokens per validation, the same ones each time, spread over the validation text (default: 20 batches, at most 16,384 "
        "tokens)",
        group=_VALIDATION)
    validate_every: int | None = option(
        None, values.count, "N",
        "steps between validations; one also runs before the first step and after the last (default: a tenth of all steps)",
        group=_VALIDATION, changeable=True)
    stop_after: int | None = option(
        None, values.count_or_none, "N", "end the run after N validations in a row without a lower loss (default: none)",
        group=_VALIDATION, changeable=True)
    sample_tokens: int = option(
        0, values.natural, "N",
        "tokens of sample text to generate at each validation, shown and appended to samples.jsonl (default: {default})",
        group=_VALIDATION, changeable=True)

    device: str = option(
        "auto", values.name, "NAME",
        "cpu, emulated, cuda:N, or auto: a GPU if there is one, else cpu; cuda:0-N for several GPUs, emulated*N for N "
        "emulated devices over one RAM (default: {default})", group=_PLACE, changeable=True, plans=True)
    device_memory: int | None = option(
        None, values.size_or_none, "SIZE",
        "most bytes to use on each device; not for cpu, where RAM is the device (default: on a GPU, all that is free but 768 "
        "MiB; on emulated, half of the RAM that tiles may take)", group=_PLACE, changeable=True, plans=True)
    host_memory: int | None = option(
        None, values.size_or_none, "SIZE",
        "most RAM to use for tiles; on cpu, RAM is the device (default: about four fifths of the RAM that the machine, its "
        "control groups and ulimit leave free)", group=_PLACE, changeable=True, plans=True)
    spill: str | None = option(
        None, values.name_or_none, "DIR",
        "existing folder on a fast disk for tiles that do not fit into --host-memory; one run at a time uses it and leaves no "
        "file there; pass it again with --resume", group=_PLACE, changeable=True, config=False, plans=True)
    spill_limit: int | None = option(
        None, values.size_or_none, "SIZE",
        "most bytes to use in the spill folder, allocated at once (default: the need that `asynctile plan` shows)",
        group=_PLACE, changeable=True, plans=True)
    link_rate: int | None = option(
        None, values.size_or_none, "SIZE",
        "bytes per second in each direction between RAM and the emulated device (default: no limit)", group=_PLACE,
        changeable=True, plans=True)
    prefetch: int = option(
        2, values.natural, "N",
        "how far ahead to prefetch tiles, in units of 4 tiles; 0 turns prefetching off (default: {default})",
        group=_PLACE, changeable=True, plans=True)
    update: str = option(
        "auto", values.name, "PLACE",
        "where AdamW runs: device, host (in RAM, so that its moments never move), or auto, which measures which is faster; no "
        "difference on cpu (default: {default})", group=_PLACE, changeable=True, plans=True)

    nodes: int = option(
        1, values.count, "N", "nodes that share the replicas of each step (default: {default})", group=_NODES, forgotten=True,
        config=False, plans=True)
    node: int = option(
        0, values.natural, "K",
        "number of this node, from 0; node 0 writes the run, and the others take all options from it but those of device and "
        "memory (default: {default})", group=_NODES, forgotten=True, config=False)
    join: tuple[str, int] | None = option(
        None, values.address, "HOST:PORT", "address at which node 0 listens and the others join, such as 127.0.0.1:29500",
        group=_NODES, forgotten=True, config=False)
    secret_file: str | None = option(
        None, values.name, "FILE", "file with a secret that all nodes know (default: the variable ASYNCTILE_SECRET)",
        group=_NODES, forgotten=True, config=False)
    network: str = option(
        TCP, values.name, "NAME",
        "what carries tiles between nodes, typed on each of them: tcp, or nccl between GPUs (needs asynctile[nccl13]; no "
        "machine has tried it) (default: {default})", group=_NODES, forgotten=True, config=False)
    ray: str | None = option(
        None, values.name, "ADDRESS",
        "run the nodes as workers of the Ray cluster at this address (HOST:PORT, auto, or local for one of this machine); a "
        "run that loses a worker goes on from its newest checkpoint (needs asynctile[ray])", group=_NODES, forgotten=True,
        config=False)

    precision: str = option(
        "fp32", values.name, "NAME",
        "fp32; on a GPU also tf32, or bf16 with fp32 master weights and moments (default: {default})", group=_ARITHMETIC,
        changeable=True, plans=True)
    tile: int | None = option(
        None, values.count, "N", "rows and columns of a tile (default: chosen automatically)", group=_ARITHMETIC, plans=True)
    recompute: bool | None = option(
        None, None, "",
        "recompute all activations in backward, or keep them all; the result is the same (default: keep those of as many "
        "layers as fit under the caps, or as the link can carry during compute)", group=_ARITHMETIC, plans=True)
    auto: float | None = option(
        None, values.duration, "TIME",
        "before a new run, plan other tiles, updates, recomputation and micro-batches for this time (30s, 2m), and train with "
        "the fastest; settings that are not at their defaults stay (default: none)", group=_ARITHMETIC, forgotten=True)

    out: str | None = option(
        None, values.name, "DIR", "folder of the run (default: a new one in runs/, named after the time)", group=_KEPT,
        forgotten=True, config=False, plans=True)
    save_every: int = option(500, values.count, "N", "steps between checkpoints (default: {default})", group=_KEPT,
                             changeable=True)
    keep: int = option(2, values.count, "N", "number of newest checkpoints to keep (default: {default})", group=_KEPT,
                       changeable=True)
    tensorboard: bool | None = option(
        None, None, "", "write TensorBoard event files to the run's folder (needs asynctile[tensorboard])", group=_KEPT,
        changeable=True)
    callback: tuple[str, ...] = option(
        (), values.name_of_class, "MODULE:CLASS",
        "report every step, validation and checkpoint to a class of your own (see asynctile.callbacks); MODULE is in the "
        "current folder or the environment; may be repeated; pass it again with --resume", group=_KEPT, forgotten=True,
        config=False, repeatable=True)
    trace: str | None = option(
        None, values.name, "FILE",
        "write a trace of what ran when and what it waited for, for ui.perfetto.dev or chrome://tracing; tracing slows the "
        "steps down; `plan` writes the step that it simulates", group=_KEPT, forgotten=True, config=False)
    trace_steps: tuple[int, int | None] | None = option(
        None, values.steps, "A:B", "trace only steps A to B; A: or :B leaves one end open (default: the whole run)",
        group=_KEPT, forgotten=True, config=False)

    @property
    def recomputing(self) -> bool | str:
        """`recompute` in the form that a Trainer takes."""
        from asynctile.layers.activations import AUTO

        return AUTO if self.recompute is None else self.recompute

    @property
    def sequences(self) -> int:
        """The number of sequences in a step."""
        return self.batch_size * self.gradient_accumulation

    @property
    def parts(self) -> int:
        """The number of micro-batches in a step, or in each replica's share of it."""
        return self.micro_batches * self.gradient_accumulation

    @property
    def last_lr(self) -> float:
        return self.lr * _LAST_RATE if self.min_lr is None else self.min_lr

    @property
    def last_decay_step(self) -> int:
        """The step at which the learning rate reaches its last value."""
        return self.decay_steps or self.steps

    @property
    def warmup_steps(self) -> int:
        return min(100, self.steps // 10) if self.warmup is None else self.warmup

    def to_json(self) -> dict[str, Any]:
        """Return the options that a run remembers; what may be typed several times as a list."""
        found = {name: value for name, value in asdict(self).items() if name not in FORGOTTEN}
        return {name: list(value) if name in REPEATABLE else value for name, value in found.items()}


_TABLE = options_of(Options)
#: The check of each option, typed or remembered. Switches have no value and no check.
CHECKS = {name: entry.check for name, entry in _TABLE.items() if entry.check is not None}
#: Options that a resumed run may change: where bytes are, how long, how often and how fast. None of them changes a bit of a
#: step, with two exceptions: the learning rate (a line reports the change), and another kind of device with its precision
#: (checkpoints hold float32, and loading one warns of the change).
CHANGEABLE = frozenset(name for name, entry in _TABLE.items() if entry.changeable)
#: Options that the user passes to each call and no file can set, for instance which file to write.
FORGOTTEN = frozenset(name for name, entry in _TABLE.items() if entry.forgotten)
#: Options that may be typed several times; run.json holds their values as a list.
REPEATABLE = frozenset(name for name, entry in _TABLE.items() if entry.repeatable)
#: The options that open an engine.
PLACEMENT = ("device", "device_memory", "host_memory", "spill", "spill_limit", "link_rate", "prefetch", "precision")
