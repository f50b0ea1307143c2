"""The options of a training run: their defaults, what fits together, and which may change when a run goes on.

Covers `Options`, `CHECKS`, `new_options` and `resumed_options`. How they are typed is arguments.py; where they are kept is
run_folder.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, get_type_hints

from asynctile.cli import values
from asynctile.layers.activations import AUTO
from asynctile.layers.gpt2_config import STANDARD
from asynctile.layers.rows import MOST_TOKENS
from asynctile.layers.update_placement import UPDATES
from asynctile.program.precision import PRECISIONS
from asynctile.storage.input import shown

__all__ = ["CHECKS", "Options", "new_options", "resumed_options"]

#: Where bytes are, how long and how often, so a resumed run may set them anew. None of these changes a bit of a step, but for
#: a device of another kind and the precision that goes with it: checkpoints hold float32, and warn of the change.
CHANGEABLE = frozenset({
    "device", "device_memory", "host_memory", "spill", "spill_limit", "link_rate", "prefetch", "precision", "steps", "out",
    "update", "save_every", "keep", "trace",
})  # fmt: skip
#: Which file is written is said by who calls, each time, and by no file.
FORGOTTEN = frozenset({"out", "trace"})
#: How each is checked, typed or remembered. Rates are bytes a second, and written like bytes.
CHECKS: dict[str, Callable[[str], Any]] = {
    "data": values.name, "model": values.name, "tokenizer": values.name,
    "device": values.name, "device_memory": values.size_or_none, "host_memory": values.size_or_none,
    "spill": values.name_or_none, "spill_limit": values.size_or_none, "link_rate": values.size_or_none,
    "prefetch": values.natural, "update": values.name, "precision": values.name, "tile": values.count,
    "steps": values.count, "batch_size": values.count, "micro_batches": values.count, "seq_len": values.count,
    "lr": values.positive, "warmup": values.natural, "weight_decay": values.fraction, "clip_norm": values.positive,
    "seed": values.natural, "out": values.name, "save_every": values.count, "keep": values.count, "trace": values.name,
}  # fmt: skip
_DEVICE = re.compile("auto|cpu|emulated|cuda(:[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `asynctile train` was asked for. Sizes are bytes, rates bytes a second."""

    data: str | None = None
    """Absolute path of a text file or folder; None: the source of Python's standard library."""
    model: str | None = None
    """A standard name, a model folder or a config.json; None: a small model."""
    tokenizer: str | None = None
    """"bytes", "bpe:N" or a file; None: that of the model folder, else bytes."""
    device: str = "auto"
    device_memory: int | None = None
    host_memory: int | None = None
    spill: str | None = None
    spill_limit: int | None = None
    link_rate: int | None = None
    prefetch: int = 2
    update: str = "auto"
    """Where AdamW runs."""
    precision: str = "fp32"
    tile: int | None = None
    recompute: bool | None = None
    """Whether activations are computed again in backward; None: those that do not fit under the caps."""
    steps: int = 2000
    batch_size: int = 12
    """Sequences a step."""
    micro_batches: int = 1
    seq_len: int | None = None
    """Tokens a sequence; None: what the model takes."""
    lr: float = 1e-3
    warmup: int | None = None
    """Steps; None: a tenth of all, at most 100."""
    weight_decay: float = 0.1
    clip_norm: float | None = None
    seed: int = 1
    out: str | None = None
    save_every: int = 500
    keep: int = 2
    trace: str | None = None

    @property
    def recomputing(self) -> bool | str:
        """`recompute` as a Trainer takes it."""
        return AUTO if self.recompute is None else self.recompute

    @property
    def warmup_steps(self) -> int:
        return min(100, self.steps // 10) if self.warmup is None else self.warmup

    def check(self) -> Self:
        """Refuse, with ValueError, what cannot work whatever the data and the model are."""
        if not _DEVICE.fullmatch(self.device):
            raise ValueError(f"--device {self.device} is not known; expected auto, cpu, emulated or cuda:N")
        if self.spill is None and self.spill_limit is not None:
            raise ValueError("--spill-limit without --spill: name the folder with --spill, or leave --spill-limit out")
        if self.precision not in PRECISIONS:
            raise ValueError(f"--precision {self.precision} is not known; expected fp32, tf32 or bf16")
        if self.precision != "fp32" and self.device in ("cpu", "emulated"):
            raise ValueError(f"--precision {self.precision} needs --device cuda:N; write --precision fp32 for {self.device}")
        if self.device == "cpu" and self.device_memory is not None:
            raise ValueError("--device-memory is not for --device cpu, where RAM is the device; use --host-memory")
        if self.device != "emulated" and self.link_rate is not None:
            raise ValueError(f"--link-rate does not go with --device {self.device}; it is for --device emulated")
        if self.update not in UPDATES:
            raise ValueError(f"--update {self.update} is not known; expected {', '.join(UPDATES)}")
        if (tokens := self.batch_size * (self.seq_len or 1)) > MOST_TOKENS:
            raise ValueError(f"--batch-size {self.batch_size} makes a step of {tokens:,} tokens or more; expected at most "
                             f"{MOST_TOKENS:,}")
        if self.batch_size % self.micro_batches:
            raise ValueError(f"--batch-size {self.batch_size} cannot be cut in --micro-batches {self.micro_batches}; "
                             "choose a divisor")
        if self.warmup_steps > self.steps:
            raise ValueError(f"--warmup {self.warmup_steps} is above --steps {self.steps}; choose at most --steps")
        return self

    def to_json(self) -> dict[str, Any]:
        """What a run remembers."""
        return {name: value for name, value in asdict(self).items() if name not in FORGOTTEN}


def new_options(given: Mapping[str, Any]) -> Options:
    """The options of a new run from those that were typed."""
    return Options(**_settled(given)).check()


def resumed_options(given: Mapping[str, Any], recorded: Mapping[str, Any], folder: Path) -> Options:
    """The options of a run that goes on: the recorded ones, with those of CHANGEABLE that were typed.

    Raises ValueError for one that was typed, may not change and differs, and for one that was recorded and could not have
    been typed.
    """
    options = Options(**_checked(recorded, folder))
    typed = _settled(given)
    for name, value in typed.items():
        was = getattr(options, name)
        if name not in CHANGEABLE and value != was:
            flag, typed_so = _flag(name, value), _as_typed(name, value)
            raise ValueError(f"{typed_so} differs from {_shown(name, was)} in the run {folder}; leave {flag} out, or "
                             "start another run with another --out")
    changes = {name: value for name, value in typed.items() if name in CHANGEABLE}
    if changes.get("device", options.device) != options.device:
        # Caps and rates belong to the device they were chosen for.
        options = replace(options, device_memory=None, host_memory=None, link_rate=None)
    if "spill" in changes and changes["spill"] is None:
        options = replace(options, spill_limit=None)
    # The schedule was fixed when the run began; a warm-up that `steps` implied stays what it was.
    options = replace(options, warmup=options.warmup_steps)
    return replace(options, **changes).check()


def _checked(recorded: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What run.json may say of options, each checked as on a command line."""
    kinds, found = get_type_hints(Options), {}
    for option in ({field.name for field in fields(Options)} - FORGOTTEN) & recorded.keys():
        value, kind = recorded[option], kinds[option]
        whole_for_float = kind in (float, float | None) and type(value) is int
        try:
            if not (isinstance(value, kind) or whole_for_float) or (isinstance(value, bool) and kind != bool | None):
                raise argparse.ArgumentTypeError(f"{shown(value)} cannot be used")
            found[option] = value if value is None or isinstance(value, bool) else CHECKS[option](str(value))
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"{folder / 'run.json'} was damaged or edited, its {option}: {error}; put it back, or "
                             "start another run with another --out") from error
    return found


def _settled(given: Mapping[str, Any]) -> dict[str, Any]:
    typed = dict(given)
    for name in ("data", "model", "tokenizer", "spill"):
        # A path that is relative means another place when the run goes on from elsewhere.
        if typed.get(name) not in (None, "bytes", *STANDARD) and Path(typed[name]).exists():
            typed[name] = str(Path(typed[name]).resolve())
    return typed


def _flag(name: str, value: Any) -> str:
    return ("--no-" if value is False else "--") + name.replace("_", "-")


def _as_typed(name: str, value: Any) -> str:
    return _flag(name, value) if isinstance(value, bool) else f"{_flag(name, value)} {value}"


def _shown(name: str, value: Any) -> str:
    """What a run remembers: a switch as it is typed, anything else by its value."""
    if value is None:
        return "the default"
    return _flag(name, value) if isinstance(value, bool) else str(value)
