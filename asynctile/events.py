"""What an engine tells its readers: frozen dataclasses, each with the share that it is of and the time.

`async for event in engine.events()` gives them (asynctile/hub.py); where each is told is where it happens. Told are things that
somebody may want to act on or to count, never single operations. Counters to be read at leisure are `engine.statistics()`.

    Opening Opened Closing              the engine, its kernels
    StepDone DataEnded                  a training
    SaveBegun SaveDone SaveFailed       checkpoints and saved models
    Fault Pressure Waiting              what went wrong, what is nearly full, who waits for long
    RequestBegun FirstToken RequestDone a request for generated text
    TextsWait                           texts that wait for steps, though they need not
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "Closing", "DataEnded", "Event", "Fault", "FirstToken", "Opened", "Opening", "Pressure", "RequestBegun", "RequestDone",
    "SaveBegun", "SaveDone", "SaveFailed", "StepDone", "TextsWait", "Waiting",
    "RETRY", "REPAIR", "OPERATION", "STALL", "TORN", "SKIPPED", "CANCELLED", "FAILED",
]  # fmt: skip

#: Fault.kind: a transfer to or from the spill file that went well after all, or whose bytes did.
RETRY: Final = "retry"
REPAIR: Final = "repair"
#: An operation failed, and with it the run of which it was.
OPERATION: Final = "operation"
#: Nothing has moved for as long as the watchdog waits.
STALL: Final = "stall"
#: A model's weights are of no single step any more.
TORN: Final = "torn"
#: A step whose loss or gradient was not finite has changed nothing.
SKIPPED: Final = "skipped"

#: RequestDone.reason beside the reasons of a Token: nobody reads it any more; it ended with an error.
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """share: the name of the share that it is of, "engine" for the engine's own part.

    at: when it was told, seconds since the epoch (time.time). dropped: events between the one that this reader had before and
    this one that it did not get, since it was too slow for its limit.
    """

    share: str
    at: float = field(default_factory=time.time, kw_only=True)
    dropped: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Event):
    """A kernel is about to be compiled, or the last one has been: `ready` of `total` are there. As Engine(report=...) tells."""

    kernel: str
    ready: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Event):
    """The engine is open. Its device, and caps in bytes: None where there is none. seconds: that this took."""

    device: str
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    spill_limit_bytes: int | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing(Event):
    """Closing has begun; when it is over, the iteration ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """A training step is over. model: its name. The rest is as in StepReport: nats, seconds (stall_s may be nan), bytes.

    skipped: its loss or gradient was not finite and nothing was updated (a Fault tells that as well).
    """

    model: str
    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    step_s: float
    stall_s: float
    uploaded_bytes: int
    downloaded_bytes: int
    spill_read_bytes: int
    spill_written_bytes: int
    skipped: bool
    played: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEnded(Event):
    """The batches of `trainer.run(batches, steps=asked)` have ended after `steps` of them, which were made or skipped."""

    model: str
    steps: int
    asked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveBegun(Event):
    """Files of a model are being written, to be put in place as the folder `path`. behind: while its training goes on."""

    model: str
    path: str
    step: int
    behind: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDone(Event):
    """The folder `path` is in place, whole and on the disk. seconds: since SaveBegun."""

    model: str
    path: str
    step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed(Event):
    """What was saved at `path` before is as it was. error: why, in a sentence; a save that was cancelled says so."""

    model: str
    path: str
    step: int
    seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Event):
    """Something went wrong. kind: RETRY, REPAIR, OPERATION, STALL, TORN or SKIPPED. text: a sentence for people.

    Work goes on behind RETRY, REPAIR and SKIPPED; the others are raised as errors to whoever awaits what failed.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure(Event):
    """A cap is nearly used up. tier: the argument that gave it, "device_memory", "host_memory" or "spill_limit"; in bytes.

    Told when it becomes so, and again only after it has been well below. text: what that means, or who had to do without.
    """

    tier: str
    used_bytes: int
    cap_bytes: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Somebody has waited for long for what another holds: a lock, RAM that is lent, an input. text: who, for what and whom.

    Told once when `seconds` has become long, and once more when the wait `is_over`.
    """

    text: str
    seconds: float
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBegun(Event):
    """A request for text has been admitted: its prompt is computed next. request: its number. waited_s: since it was asked."""

    model: str
    request: int
    prompt_tokens: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken(Event):
    """The first token of a request. seconds: since it was asked for."""

    model: str
    request: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone(Event):
    """A request is over. reason: "stop", "length", CANCELLED or FAILED; error: why it failed, else None.

    Seconds since it was asked for: waited_s until it was admitted, first_token_s (None if there was no token), total_s.
    """

    model: str
    request: int
    reason: str
    prompt_tokens: int
    new_tokens: int
    waited_s: float
    first_token_s: float | None
    total_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextsWait(Event):
    """A text waited for a training step on its own share. Told once a share. model: of the text. text: the way out."""

    model: str
    text: str
