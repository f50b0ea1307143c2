"""A share of an engine as users see it: its name, its settings and its statistics.

An `Engine` (engine.py) is the share of everything that it has not lent; `Engine.share` lends others (lent.py). The work itself
is done by the share's runtime (runtime.py), which `runtime_of` returns to the models, trainers and commands.
"""

from __future__ import annotations

import os

from asynctile.hub import ENGINE, Tell
from asynctile.lifetime import Lifetime
from asynctile.measure.statistics import Statistics
from asynctile.memory.tiers import TierOptions
from asynctile.runtime import Runtime
from asynctile.schedule.rates import Rates
from asynctile.storage.input import shown
from asynctile.storage.sizes import format_size


class Share:
    """A part of the devices' memory and time for models, trainers and servers. `Engine` and `Engine.share` make shares."""

    def __init__(self, life: Lifetime, tell: Tell, options: TierOptions, runtime: Runtime | None = None) -> None:
        self._life = life
        self._tell = tell
        self._options = options
        #: None until the engine is being opened
        self._runtime = runtime
        self._plays = True if runtime is None else runtime.plays

    def __repr__(self) -> str:
        """Return the kind, name, device, precision and caps of the share, and whether it is open; in any process."""
        kind, options, life = type(self).__name__, self._options, self._life
        caps = [f"device memory {format_size(options.device_memory)}"] if options.device_memory is not None else []
        caps += [f"RAM {format_size(options.host_memory)}"] if options.host_memory is not None else []
        caps += ["a spill folder"] if life.spill is not None else []
        elsewhere = life.process not in (None, os.getpid())
        state = "of another process" if elsewhere else "open" if self.is_open else "not open"
        name = "" if self.name == ENGINE else f" {self.name!r}"
        return f"<{kind}{name} on {self.device} in {self.precision} with {', '.join(caps)}; {state}>"

    @property
    def name(self) -> str:
        """The name in events and metrics: "engine" for the engine itself."""
        return self._tell.share

    @property
    def device(self) -> str:
        """The name of the device: "cpu", "emulated" or "cuda:N", also if "auto" was asked for. Of several: "emulated*4"."""
        return self._life.device_name

    @property
    def precision(self) -> str:
        """The arithmetic that kernels compute in, as given to Engine: "fp32", "tf32" or "bf16"."""
        return self._life.precision

    @property
    def prefetch(self) -> int:
        """How far transfers run ahead of compute, as given to Engine; 0 for no overlap."""
        return self._options.prefetch

    @property
    def plays(self) -> bool:
        """Whether compiled workers, or graphs on a GPU, play the programs that repeat. Set it to False to run all of them as
        coroutines; the results are the same.
        """
        return self._plays

    @plays.setter
    def plays(self, plays: bool) -> None:
        self._plays = plays
        if self._runtime is not None:
            self._runtime.plays = plays

    @property
    def link_rate(self) -> float | None:
        """Bytes a second of the emulated link each way, as given to Engine; None for no limit, or where no rate was given."""
        workers = self._life.device.workers
        return None if workers is None else workers.link_rate

    @property
    def rates(self) -> Rates:
        """The rates of the machine that every decision goes by, whatever `link_rate` is: as given to Engine, or measured when
        the first engine of this machine was opened. Before the engine is open, assumed rates.
        """
        return self._life.rates

    @property
    def weight(self) -> float:
        """The share's part of the device's time while several shares have a job, as given to Engine.share; an engine has 1."""
        return 1.0 if self._runtime is None else self._runtime.turn.weight

    @property
    def interactive(self) -> bool:
        """Whether the share's jobs go before those of other shares, as given to Engine.share."""
        return self._runtime is not None and self._runtime.turn.interactive

    @property
    def is_open(self) -> bool:
        """Whether the share takes work; from any thread. False in a forked child of the process that opened the engine."""
        return self._runtime is not None and self._runtime.is_open

    def statistics(self) -> Statistics:
        """Return a snapshot of what the share holds, has moved and waits for; from any thread, in microseconds, while anything
        runs. DeviceError before the engine was opened.
        """
        return runtime_of(self).statistics()


def runtime_of(share: Share) -> Runtime:
    """Return the runtime inside a share. TypeError for another object; DeviceError before the engine was opened, and in a
    forked child.
    """
    if not isinstance(share, Share):
        raise TypeError(f"engine is {shown(share)}, expected an Engine that is open, or a share of one")
    share._life.check_process()
    if share._runtime is None:
        raise share._life.not_open()
    return share._runtime
