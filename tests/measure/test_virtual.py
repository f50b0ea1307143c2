"""The virtual clock carries out schedules in an order that their edges allow, and knows what is busy."""

from collections import defaultdict
from dataclasses import replace

import pytest

from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import planned_step
from asynctile.measure.costs import CARRY, EntryCosts
from asynctile.measure.simulate import simulate
from asynctile.measure.virtual import Resource, Unit, timeline, unit_of
from asynctile.program.operation import HOST, Operation
from asynctile.schedule.rates import CORES, assumed
from asynctile.schedule.schedule import Kind, Schedule
from tests.layers.training import NARROW

GPU = assumed("cuda:0")


def schedule_of(
    device: str = "emulated", *, replicas: int = 1, update: str = "device", spill: bool = False, nodes: int = 1
) -> Schedule:
    """Return the schedule of a step under a cap that does not hold it."""
    cap = (96 << 10) if spill else NARROW.config.states_nbytes // 2
    caps = {"host_memory": cap} if device == "cpu" else {"device_memory": cap}
    machine = Machine(device=device, spill=spill, nodes=nodes, **caps)  # type: ignore[arg-type]
    work = Work(batch_size=2, seq_len=17, replicas=replicas, tile=NARROW.tile, update=update, recompute=True)
    step = planned_step(NARROW.config, work, machine)
    return simulate(step.program, step.standing, device=device, spill=spill, grain=machine.grain, **caps).schedule  # type: ignore[arg-type]


@pytest.mark.parametrize("at_once", [1, 3])
def test_entries_begin_after_what_they_wait_for_and_never_crowd_a_unit(at_once: int) -> None:
    schedule = schedule_of("emulated*2", replicas=2, update="host")
    line = timeline(schedule, lambda entry: 1.0 if isinstance(entry.what, Operation) else 0.25, at_once=at_once)
    for number, entry in enumerate(schedule.entries):
        assert line.units[number] == unit_of(entry)
        assert all(line.ends[before] <= line.begins[number] for before in (*entry.waits, *entry.after))
    spans = defaultdict(list)
    for unit, begin, end in zip(line.units, line.begins, line.ends, strict=True):
        spans[unit] += [(begin, 1), (end, -1)]
    for unit, changes in spans.items():
        running, most = 0, at_once if unit.resource is Resource.COMPUTE else 1
        for _, change in sorted(changes):
            running += change
            assert 0 <= running <= most
    assert line.seconds == max(line.ends)


def test_updates_wait_until_the_loss_is_known() -> None:
    schedule = schedule_of()
    line = timeline(schedule, lambda entry: 1.0)
    updates = [number for number, entry in enumerate(schedule.entries) if entry.stretch >= schedule.marks["update"]]
    reports = [number for number, entry in enumerate(schedule.entries)
               if entry.stretch < schedule.marks["loss"] and isinstance(entry.what, Operation)
               and entry.what.kernel == "cross_entropy"]
    assert reports and max(line.ends[number] for number in reports) <= min(line.begins[number] for number in updates)


def test_a_slow_link_bounds_a_step_and_a_fast_one_does_not() -> None:
    schedule = schedule_of("cuda:0")
    slow, fast = (EntryCosts(rates=GPU.limited(bytes_a_second)).timeline(schedule) for bytes_a_second in (1e6, 1e15))
    assert next(iter(slow.shares())) in (Resource.UP, Resource.DOWN) and next(iter(slow.shares().values())) > 0.8
    assert next(iter(fast.shares())) == Resource.COMPUTE and fast.seconds < slow.seconds / 10
    assert fast.seconds >= fast.busy[Unit(0, Resource.COMPUTE)]


def test_verbs_with_rates_of_their_own_take_them() -> None:
    schedule = schedule_of("cuda:0")
    operations = [entry.what for entry in schedule.entries if isinstance(entry.what, Operation)]
    work = sum(operation.flops for operation in operations if operation.kernel == "gemm")
    rates = replace(GPU, flops_per_s=1e24, memory_per_s=1e24, operation_s=1e-12)
    costs = EntryCosts(rates=rates, verbs={"gemm": float(work)})
    assert costs.timeline(schedule).busy[0, Resource.COMPUTE] == pytest.approx(1.0, rel=1e-3)


def test_cores_share_their_rate_among_operations_side_by_side_and_make_the_copies() -> None:
    schedule = schedule_of()
    operation = next(entry for entry in schedule.entries if isinstance(entry.what, Operation) and entry.what.flops)
    rates = replace(CORES, memory_per_s=1e24, operation_s=1e-12)
    one, four = EntryCosts(rates=rates, cores=1), EntryCosts(rates=rates, cores=4)
    assert (one.at_once, four.at_once) == (1, 4)
    assert four.seconds(operation) == pytest.approx(4 * one.seconds(operation), rel=1e-3)
    slowly = EntryCosts(rates=replace(rates, copied_per_s=1e3), cores=1).timeline(schedule)
    copied = sum(entry.nbytes for entry in schedule.entries if entry.kind in (Kind.UPLOAD, Kind.DOWNLOAD, Kind.FETCH))
    assert slowly.seconds > copied / 1e3 > 100 * one.timeline(schedule).seconds


def test_cores_take_time_from_their_operations_to_carry_tiles_to_a_file() -> None:
    schedule = schedule_of("cpu", spill=True)
    carried = sum(entry.nbytes for entry in schedule.entries if entry.kind is Kind.TRANSFER)
    free, costly = (EntryCosts(rates=replace(CORES, disk_per_s=1e24), cores=1, verbs={CARRY: rate}) for rate in (1e24, 1e3))
    assert costly.timeline(schedule).seconds - free.timeline(schedule).seconds == pytest.approx(carried / 1e3, rel=0.05)
    assert EntryCosts(rates=GPU, verbs={CARRY: 1e3}).timeline(schedule_of("cuda:0", spill=True)).seconds < carried / 1e6


def test_tiles_for_other_nodes_cost_the_cores_nothing_of_a_file() -> None:
    schedule = schedule_of(replicas=2, nodes=2)
    assert any(entry.node is not None for entry in schedule.entries)
    slow, fast = (EntryCosts(rates=CORES, cores=2, verbs={CARRY: rate}).timeline(schedule).seconds for rate in (1e3, 1e24))
    assert slow == fast


def test_updates_in_ram_run_beside_a_gpu_and_on_the_cores_of_an_emulated_device() -> None:
    schedule = schedule_of("cuda:0", update="host")
    assert any(isinstance(entry.what, Operation) and entry.what.device == HOST for entry in schedule.entries)
    assert Resource.UPDATES in EntryCosts(rates=GPU).timeline(schedule).shares()
    alone = EntryCosts(rates=CORES, cores=2).timeline(schedule_of(update="host"))
    assert Resource.UPDATES not in alone.shares()


def test_a_file_below_ram_is_a_unit_of_its_own() -> None:
    shares = EntryCosts(rates=replace(CORES, disk_per_s=1e5), cores=2).timeline(schedule_of("cpu", spill=True)).shares()
    assert next(iter(shares)) == Resource.DISK and set(shares) == {Resource.DISK, Resource.COMPUTE}
