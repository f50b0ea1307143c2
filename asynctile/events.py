"""The events of an engine: frozen dataclasses, each with the name of its share and the time.

`async for event in engine.events()` yields them (asynctile/hub.py). Events are things to act on or to count, never single
operations; the code where a thing happens tells it. `engine.statistics()` has the counters.

    Opening Opened Closing              the engine, its kernels
    StepDone DataEnded                  a training
    SaveBegun SaveDone SaveFailed       checkpoints and saved models
    Fault Pressure Waiting              failures, caps that are nearly used up, long waits
    RequestBegun FirstToken RequestDone a request for generated text
    TextsWait                           texts that wait for training steps, though they need not
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

#: Values of Fault.kind. A transfer to or from the spill file was repeated, or its bytes were repaired.
RETRY: Final = "retry"
REPAIR: Final = "repair"
#: An operation failed, and with it the run that it belongs to.
OPERATION: Final = "operation"
#: Nothing has moved for the watchdog's time.
STALL: Final = "stall"
#: The weights of a model belong to no single step any more.
TORN: Final = "torn"
#: A step changed nothing because its loss or gradient was not finite.
SKIPPED: Final = "skipped"

#: Values of RequestDone.reason besides those of Token.finish_reason: its reader has gone; it ended with an error.
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """The fields that all events have. share: the name of the event's share, "engine" for the engine's own.

    at: when it was told, in seconds since the epoch (time.time). dropped: the number of events just before this one that the
    reader lost because it was more than its limit behind.
    """

    share: str
    at: float = field(default_factory=time.time, kw_only=True)
    dropped: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Event):
    """A kernel is about to be compiled, or the last one was: `ready` of `total` are done. The same as Engine(report=...)."""

    kernel: str
    ready: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Event):
    """The engine is open, on these devices, under these caps in bytes (None: no cap). seconds: how long opening took.

    device: the name of all of them, such as "emulated*4". device_memory_bytes: the cap of each.
    """

    device: str
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    spill_limit_bytes: int | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing(Event):
    """Closing has begun. The reader ends when it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """A training step is over. model: its name. The other fields are those of StepReport: nats, seconds, bytes.

    stall_s may be nan. skipped: nothing was updated because the loss or a gradient was not finite (a Fault says so too).
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
    passed_bytes: int
    sent_bytes: int
    received_bytes: int
    spill_read_bytes: int
    spill_written_bytes: int
    skipped: bool
    played: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEnded(Event):
    """The batches of `trainer.run(batches, steps=asked)` ended after `steps` steps, skipped ones included."""

    model: str
    steps: int
    asked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveBegun(Event):
    """Writing the folder `path` of a model has begun. behind: whether its training goes on meanwhile."""

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
    """A save failed; an older folder at `path` is untouched. error: the cause in a sentence, also for a cancelled save."""

    model: str
    path: str
    step: int
    seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Event):
    """Something went wrong. kind: RETRY, REPAIR, OPERATION, STALL, TORN or SKIPPED. text: a sentence for people.

    After RETRY, REPAIR and SKIPPED work goes on. The other kinds are also raised as errors where the failed work is awaited.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure(Event):
    """A cap, in bytes, is nearly used up. tier: the argument that gave it: "device_memory", "host_memory" or "spill_limit".

    Told once, and again only after usage was well below the cap; of several devices, the fullest counts. text: what follows,
    or which request was refused.
    """

    tier: str
    used_bytes: int
    cap_bytes: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """A job has waited long for a lock, for RAM that is lent, or for an input. text: who waits for what, and who holds it.

    Told once when `seconds` has become long, and once more when the wait `is_over`.
    """

    text: str
    seconds: float
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBegun(Event):
    """A request for text was admitted: its prompt is computed next. request: its number. waited_s: how long it waited."""

    model: str
    request: int
    prompt_tokens: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken(Event):
    """The first token of a request is there. seconds: since the request was made."""

    model: str
    request: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone(Event):
    """A request is over. reason: "stop", "length", CANCELLED or FAILED. error: why it failed, else None.

    Seconds since the request was made: waited_s until it was admitted, first_token_s (None without a token), total_s.
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
    """A text waited for a training step on its own share. Told once a share. model: its name. text: the way out."""

    model: str
    text: str
