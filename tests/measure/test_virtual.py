"""The virtual clock carries out schedules in an order that their edges allow, and knows what is busy."""

from collections import defaultdict
from dataclasses import replace

import pytest

from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import traffic_of
from asynctile.layers.planned_step import planned_step, planned_steps
from asynctile.measure.costs import CARRY, EntryCosts
from asynctile.measure.simulate import simulate
from asynctile.measure.virtual import Resource, Seconds, Timeline, Unit, timelines, unit_of
from asynctile.program.operation import HOST, WRITE, Operation
from asynctile.program.program import Program
from asynctile.schedule.rates import CORES, assumed
from asynctile.schedule.schedule import RAM, TOP, Kind, Place, Schedule, Scheduled, node_tier_of
from asynctile.storage.tile import Tile
from tests.by_hand import SHAPE
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
    [line] = timelines([schedule], [lambda entry: 1.0 if isinstance(entry.what, Operation) else 0.25], at_once=at_once)
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
    [line] = timelines([schedule], [lambda entry: 1.0])
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


TILE, WEIGHT = Tile("t", SHAPE), Tile("w", SHAPE, persistent=True)


def work(*waits: int, stretch: int = 0, reports: bool = False) -> Scheduled:
    what = Operation("none", (TILE,), WRITE, number=0 if reports else None)
    return Scheduled(Kind.OPERATION, what, (Place(TOP, TILE.nbytes, 0),), waits, (), stretch)


def sends(target: int, index: int, *waits: int, tile: Tile = TILE) -> Scheduled:
    places = Place(node_tier_of(target), TILE.nbytes, index), Place(RAM, TILE.nbytes, 0)
    return Scheduled(Kind.TRANSFER, tile, places, waits, (), 0)


def receives(source: int, index: int, *waits: int, tile: Tile = TILE) -> Scheduled:
    return replace(sends(source, index, *waits, tile=tile), places=sends(source, index).places[::-1])


def node(*entries: Scheduled, **marks: int) -> Schedule:
    return Schedule(Program("by hand"), entries, (0,), marks, (), {}, (), (), (), repeats=True)


def lasting(work_s: float, transfer_s: float = 2.0) -> Seconds:
    return lambda entry: work_s if entry.kind is Kind.OPERATION else transfer_s


def spans(line: Timeline) -> list[tuple[float, float]]:
    return list(zip(line.begins, line.ends, strict=True))


def test_a_transfer_waits_for_both_nodes_and_takes_as_long_as_for_the_slower_one() -> None:
    schedules = [node(work(), sends(1, 0, 0)), node(work(), receives(0, 0, 0), work(1))]
    one, other = timelines(schedules, [lasting(1.0, 2.0), lasting(3.0, 4.0)])
    assert spans(one) == [(0, 1), (3, 7)] and spans(other) == [(0, 3), (3, 7), (7, 10)]
    assert one.seconds == other.seconds == 10
    assert one.busy == {Unit(0, Resource.COMPUTE): 1, Unit(0, Resource.SENT): 4} and other.busy[0, Resource.RECEIVED] == 4


def test_a_node_by_itself_waits_for_no_other_node() -> None:
    [line] = timelines([node(work(), receives(1, 0), sends(1, 0, 0), work(1))], [lasting(1.0, 2.0)])
    assert spans(line) == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_transfers_between_two_nodes_keep_their_order_and_hold_up_no_other_pair() -> None:
    schedules = [
        node(work(), sends(1, 0, 0), sends(1, 1), sends(2, 0), receives(1, 0)),
        node(receives(0, 0), receives(0, 1), sends(0, 0)),
        node(receives(0, 0)),
    ]
    first, second, third = timelines(schedules, [lasting(5.0)] * 3)
    assert spans(first) == [(0, 5), (5, 7), (7, 9), (0, 2), (0, 2)]
    assert spans(second) == [(5, 7), (7, 9), (0, 2)] and spans(third) == [(0, 2)]


def test_a_weight_that_is_not_ready_holds_up_no_later_sum() -> None:
    schedules = [
        node(work(), sends(1, 0, 0, tile=WEIGHT), sends(1, 0), sends(1, 1)),
        node(receives(0, 0, tile=WEIGHT), receives(0, 0), receives(0, 1)),
    ]
    first, _ = timelines(schedules, [lasting(5.0)] * 2)
    assert spans(first) == [(0, 5), (5, 7), (0, 2), (2, 4)]


def test_sums_go_before_weights_that_come_earlier_in_the_schedule() -> None:
    schedules = [
        node(work(), sends(1, 0), sends(1, 0, 0, tile=WEIGHT), sends(1, 1, 0)),
        node(receives(0, 0), receives(0, 0, tile=WEIGHT), receives(0, 1)),
    ]
    first, _ = timelines(schedules, [lasting(1.0)] * 2)
    assert spans(first) == spans(timelines(schedules[:1], [lasting(1.0)])[0]) == [(0, 1), (0, 2), (4, 6), (2, 4)]


def test_a_transfer_of_which_both_ends_wait_for_another_one_runs_once() -> None:
    schedules = [node(sends(1, 0), receives(1, 0, 0), receives(1, 1)), node(receives(0, 0), sends(0, 0, 0), sends(0, 1))]
    first, second = timelines(schedules, [lasting(1.0)] * 2)
    assert spans(first) == spans(second) == [(0, 2), (2, 4), (4, 6)]
    assert first.busy[0, Resource.RECEIVED] == second.busy[0, Resource.SENT] == 4


def test_a_node_receives_from_one_other_node_at_a_time_and_senders_go_on_with_other_tiles() -> None:
    schedules = [
        node(sends(2, 0), receives(1, 0)), node(sends(2, 0), sends(0, 0)), node(receives(0, 0), receives(1, 0)),
    ]  # fmt: skip
    first, second, third = timelines(schedules, [lasting(1.0)] * 3)
    assert spans(third) == [(0, 2), (2, 4)] and spans(second) == [(2, 4), (0, 2)] and spans(first) == [(0, 2), (0, 2)]


def test_a_slow_node_holds_the_updates_of_all_until_its_loss_is_known() -> None:
    own = node(work(reports=True), work(0, stretch=2), loss=1, update=2)
    quick, slow = timelines([own, own], [lasting(1.0), lasting(9.0)])
    assert spans(quick) == [(0, 1), (9, 10)] and spans(slow) == [(0, 9), (9, 18)] and quick.seconds == 18


def test_schedules_of_some_nodes_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="only one node knows of transfer 0 from node 0 to node 2"):
        timelines([node(sends(2, 0)), node()], [lasting(1.0)] * 2)


@pytest.mark.parametrize(("nodes", "devices"), [(2, 2), (4, 1)])
def test_all_nodes_of_a_step_run_by_one_clock(nodes: int, devices: int) -> None:
    machine = Machine(device=f"cuda:0-{devices - 1}" if devices > 1 else "cuda:0", nodes=nodes, sent_per_s=1e7)
    step_of_all = Work(batch_size=8, seq_len=17, replicas=8, tile=NARROW.tile)
    steps = planned_steps(NARROW.config, step_of_all, machine, range(nodes))
    schedules = [traffic_of(step, machine).schedule for step in steps]
    lines = machine.costs(NARROW.tile).timelines(schedules)
    carried = defaultdict(list)
    for number, (schedule, line) in enumerate(zip(schedules, lines, strict=True)):
        assert line.seconds == max(max(one.ends) for one in lines)
        for entry, begin in zip(schedule.entries, line.begins, strict=True):
            assert all(line.ends[before] <= begin for before in (*entry.waits, *entry.after))
        for entry, unit, span in zip(schedule.entries, line.units, spans(line), strict=True):
            if entry.node is not None:
                carried[number, unit.resource].append((span, entry.node, entry.what))
    assert len(carried) == 2 * nodes
    for (number, resource), all_of in carried.items():
        ends = [0.0, *(end for (_, end), _, _ in sorted(all_of))]
        assert all(begin >= end for ((begin, _), _, _), end in zip(sorted(all_of), ends, strict=False))
        for other in {away for _, away, _ in all_of}:
            there = Resource.RECEIVED if resource is Resource.SENT else Resource.SENT
            here = [span for span, away, _ in all_of if away == other]
            assert here == [span for span, away, _ in carried[other, there] if away == number]
            for is_persistent in (False, True):
                alike = [span for span, away, tile in all_of if away == other and tile.persistent is is_persistent]
                assert resource is Resource.RECEIVED or alike == sorted(alike)
