"""The input of a plan: `Work`, the settings of a training, and `Machine`, the settings of an engine and its assumed rates.

The machine need not exist here. Assumed rates are rough, and plan.py says so where it uses them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from asynctile.device import resolved
from asynctile.device.names import names_of
from asynctile.layers.activations import AUTO, Room, check_recompute
from asynctile.layers.tuning import WHOLE, Tuning
from asynctile.layers.update_placement import check_update
from asynctile.layers.weight_dtype import FLOAT32, check_kept
from asynctile.measure.costs import EntryCosts
from asynctile.program.grain import Grain, grain_of
from asynctile.program.precision import check_precision
from asynctile.schedule.rates import Rates, assumed
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT
from asynctile.storage.limits import spare_memory
from asynctile.storage.sizes import parse_size

#: Bytes a second of the network that is assumed between nodes, of 25 Gbit/s.
NETWORK_PER_S = 25e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A batch and how it is trained on, as in Trainer; tile: as in Model.create. ValueError for an invalid setting.

    tuning: the trained part of the model. weights: as in Model.from_pretrained, of a file that has every matrix in bfloat16.
    """

    batch_size: int
    seq_len: int
    micro_batches: int = 1
    replicas: int = 1
    recompute: bool | str = AUTO
    clip_norm: float | None = None
    tile: int | None = None
    update: str = "auto"
    tuning: Tuning = WHOLE
    weights: str = FLOAT32

    def __post_init__(self) -> None:
        check_kept(self.weights)
        check_update(self.update)
        check_recompute(self.recompute)

    @property
    def kind(self) -> str:
        """The kind of the program (layers/step.py)."""
        return "step" if self.clip_norm is None else "step_clipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The settings of an engine that is not open, sizes as in Engine. ValueError for wrong settings.

    spill: whether there is a folder below RAM. measured: rates of the machine, such as `rates` of an engine; None: rough rates
    are assumed. gemm_rate: FLOP/s of matrix products on all cores together, which replaces that of the rates. Only estimates of
    time use it, passed_per_s (bytes a second from one device to another; None: as over the link) and verbs (as in EntryCosts).
    verbs is by tile edge. own_cores: the cores that compute; None: those of this machine.

    nodes: how many such machines share the replicas of a step. sent_per_s: bytes a second from one of them to the others, and
    as many to it at the same time; for estimates of time alone. None: a network of 25 Gbit/s.
    """

    device: str = "auto"
    precision: str = "fp32"
    device_memory: int | str | None = None
    host_memory: int | str | None = None
    spill: bool = False
    spill_limit: int | str | None = None
    prefetch: int = 2
    link_rate: int | str | None = None
    measured: Rates | None = None
    gemm_rate: float | None = None
    passed_per_s: float | None = None
    verbs: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    own_cores: int | None = None
    nodes: int = 1
    sent_per_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", resolved(self.device))
        check_precision(self.precision, self.device)
        if self.device_memory is not None and not self.has_link:
            raise ValueError("device_memory does not go with device 'cpu': RAM is the device there; give host_memory")

    @property
    def grain(self) -> Grain:
        """The sizes of tiles that suit the machine's kind of device."""
        return grain_of(self.device)

    @property
    def has_link(self) -> bool:
        """Whether the device has memory of its own."""
        return self.device != "cpu"

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(names_of(self.device))

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def cores(self) -> int:
        """The cores that compute; 1 on a GPU."""
        return 1 if self.is_gpu else self.own_cores or len(os.sched_getaffinity(0))

    @property
    def cores_of_each(self) -> int:
        """The number of tiles that each device computes at once; emulated devices divide the cores."""
        return self.cores if self.is_gpu else max(1, self.cores // self.devices)

    @property
    def flops_per_s(self) -> float:
        """The rate of GEMMs by which times are estimated, in FLOP/s."""
        return self.rates.flops_per_s if self.gemm_rate is None else self.gemm_rate

    @property
    def rates(self) -> Rates:
        """The rates by which an engine decides."""
        found = assumed(self.device, self.precision) if self.measured is None else self.measured
        return found.limited(None if self.is_gpu else size(self.link_rate))

    @property
    def network_per_s(self) -> float:
        """The rate of each way to other nodes, in bytes a second."""
        return NETWORK_PER_S if self.sent_per_s is None else self.sent_per_s

    def costs(self, edge: int) -> EntryCosts:
        """Return what the entries of a schedule over tiles of `edge` cost there, for estimates of time."""
        nearest = min(self.verbs, key=lambda known: abs(math.log(known / edge)), default=None)
        verbs = {} if nearest is None else self.verbs[nearest]
        return EntryCosts(rates=replace(self.rates, flops_per_s=self.flops_per_s), devices=self.devices,
                     cores=0 if self.is_gpu else self.cores, passed_per_s=self.passed_per_s, sent_per_s=self.network_per_s,
                     verbs=verbs)  # fmt: skip

    @property
    def host_nbytes(self) -> int | None:
        """The cap on RAM in bytes. If none is given and there is a spill folder, it is the memory that the system can spare."""
        host = size(self.host_memory)
        return spare_memory() if self.spill and host is None else host

    @property
    def rooms(self) -> tuple[Room, ...]:
        """The room that each tier has for a step, from the top down.

        A tier without a given cap gets the one that an engine would take. The exception is a GPU, which need not exist: it and
        its RAM are then unlimited.
        """
        device, ram = size(self.device_memory), size(self.host_memory)
        page = PAGE if self.spill else ALIGNMENT
        if not self.is_gpu:
            spare = spare_memory()
            device = spare // 2 // self.devices if device is None else device
            ram = spare - self.has_link * min(device * self.devices, spare // 2) if ram is None else ram
        below = Room(ram, page)
        return (Room(device, self.grain.alignment), below) if self.has_link else (below,)

    def cap(self, host: int | None) -> int | None:
        """Return the cap on the memory in which tiles are computed; `host` is the cap on RAM in bytes."""
        return size(self.device_memory) if self.has_link else host


def size(value: int | str | None) -> int | None:
    """Return a size in bytes; None for no limit."""
    return None if value is None else parse_size(value)
