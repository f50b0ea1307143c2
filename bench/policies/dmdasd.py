"""StarPU's policy dmdasd, which NNTile takes: each operation goes, as soon as it may run, where it is expected to cost least.

By src/sched_policies/deque_modeling_policy_data_aware.c of StarPU (github.com/starpu-runtime/starpu):

- An operation is given to a device as soon as all that it waits for is over (`_dmda_push_task`). That device is the one with
  the least alpha (end - earliest end) + beta (transfers), alpha = beta = 1. Its end is expected after the work already given to
  the device, and not before its transfers are over. Transfers: the seconds of the bytes that it reads and the device lacks.
- The device then prefetches these bytes. A prefetch evicts nothing: if there is no room, it is not made.
- A free device takes, of the operations given to it, the first with the fewest bytes missing; ties go to those on the way
  (`starpu_st_fifo_taskq_pop_first_ready_task`). NNTile gives no priorities, so the sorted queue is in order of arrival.
- A device takes LAG operations ahead of the one that it computes, StarPU's default for CUDA. It evicts by LRU.

NNTile restricts its operations to GPUs (`restrict_cuda` in its examples); operations of the host keep their place here, and
costs are those of the virtual clock. Inputs that the host rewrites at a mark have no counterpart: a program that has some is
refused.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

from asynctile.measure.costs import EntryCosts
from asynctile.measure.virtual import Unit, unit_of
from asynctile.program.operation import HOST, READ, WRITE
from asynctile.program.program import UPDATE, Program
from asynctile.schedule.schedule import NOBODY, Schedule
from asynctile.storage.tile import Tile
from policies.moves import IN_RAM, Moves, Task, access_of, entry_of, tasks_of
from policies.room import Room

#: STARPU_CUDA_PIPELINE: operations that a device has taken and not ended, at most.
LAG = 2
#: Of its queue a device looks at so many operations at most. StarPU looks at all, until one has all its bytes.
SEEN = 64


def dmdasd(program: Program, cap: int, costs: EntryCosts) -> Schedule:
    """Return a step in the steady state: the second of two. cap: bytes of each device."""
    return moves_by_greed(program, cap, costs).schedule()


def moves_by_greed(program: Program, cap: int, costs: EntryCosts, steps: int = 2) -> Moves:
    """Return the moves of the last of so many steps in a row. The first finds all tiles in RAM."""
    moves = Moves(program, [Room(cap) for _ in range(costs.devices)])
    graph = Graph(program, costs)
    for _ in range(steps):
        moves.begin()
        _Greedy(graph, moves, costs).run()
    return moves


class Graph:
    """The tasks of a program by number, and what each waits for.

    A reader waits for the writer before it, a writer for all readers and writers before it, and what is behind the mark of the
    updates for all numbers of the loss. after: by task, the tasks that wait for it. blocked: by task, how many it waits for.
    spent: the seconds of each.
    """

    def __init__(self, program: Program, costs: EntryCosts) -> None:
        if any(program.rewritten.values()):
            raise ValueError(f"{program.name} rewrites inputs at a mark, which dmdasd does not know")
        self.tasks: list[Task] = []
        self.spent: list[float] = []
        self.how: list[dict[Tile, str]] = []
        self.stretches: list[int] = []
        marks = sorted(program.marks.values())
        updates, loss = program.marks.get(UPDATE), program.marks.get("loss", 0)
        reporting = list[int]()
        written: dict[Tile, int] = {}
        read: dict[Tile, list[int]] = defaultdict(list)
        self.after: list[list[int]] = []
        self.blocked: list[int] = []
        for number, (position, task) in enumerate(tasks_of(program)):
            before = set(reporting) if updates is not None and position > updates else set[int]()
            how = access_of(task)
            for tile, letters in how.items():
                if tile in written:
                    before.add(written[tile])
                if letters == READ:
                    read[tile].append(number)
                else:
                    before.update(read.pop(tile, ()))
                    written[tile] = number
            before.discard(number)
            if position < loss and task.number is not None and task.number >= 0:
                reporting.append(number)
            self.tasks.append(task)
            self.spent.append(costs.seconds(entry_of(task)))
            self.how.append(how)
            self.stretches.append(sum(at <= position for at in marks))
            self.after.append([])
            self.blocked.append(len(before))
            for earlier in before:
                self.after[earlier].append(number)


@dataclass(slots=True)
class _Worker:
    """A device. queue: tasks given to it. taken: those taken and not ended. until: when the taken ones end.

    ahead: expected seconds of the queue.
    """

    queue: deque[int] = field(default_factory=deque)
    taken: int = 0
    until: float = 0.0
    ahead: float = 0.0


class _Greedy:
    def __init__(self, graph: Graph, moves: Moves, costs: EntryCosts) -> None:
        self._graph, self._moves, self._costs = graph, moves, costs
        self._blocked = list(graph.blocked)
        self._workers = [_Worker() for _ in moves.rooms]
        self._expected: dict[int, float] = {}
        self._ends: list[float] = []
        self._free: dict[Unit, float] = defaultdict(float)
        self._ending: list[tuple[float, int, int]] = []
        self._up, self._passed = costs.rates.up_per_s, costs.passed_per_s or costs.rates.up_per_s

    def run(self) -> None:
        for task, count in enumerate(self._blocked):
            if not count:
                self._push(task, 0.0)
        self._pop_all(0.0)
        done = 0
        while self._ending:
            now, task, node = heapq.heappop(self._ending)
            done += 1
            if node != IN_RAM:
                self._workers[node].taken -= 1
            for later in self._graph.after[task]:
                self._blocked[later] -= 1
                if not self._blocked[later]:
                    self._push(later, now)
            self._pop_all(now)
        assert done == len(self._graph.tasks)

    def _push(self, task: int, now: float) -> None:
        """Give a task that may run to the device where it is expected to cost least, and prefetch for it."""
        if self._graph.tasks[task].device == HOST:
            self._start(task, IN_RAM, now)
            return
        spent, transfers, ends = self._graph.spent[task], self._transfers(task), list[float]()
        for worker, transfer in zip(self._workers, transfers, strict=True):
            ends.append(max(max(now, worker.until) + worker.ahead, now + transfer) + spent)
        first = min(ends)
        node = min(range(len(ends)), key=lambda node: ends[node] - first + transfers[node])
        worker = self._workers[node]
        waiting = max(0.0, now + transfers[node] - (max(now, worker.until) + worker.ahead))
        self._expected[task] = spent + waiting
        worker.ahead += spent + waiting
        worker.queue.append(task)
        for tile, letters in self._graph.how[task].items():
            if letters != WRITE and self._moves.missing(tile, node) and self._moves.rooms[node].free >= tile.nbytes:
                self._moves.load(tile, node)
                self._time(now)

    def _pop_all(self, now: float) -> None:
        for node, worker in enumerate(self._workers):
            while worker.queue and worker.taken < LAG:
                task = self._readiest(worker, node, now)
                worker.queue.remove(task)
                worker.ahead = max(0.0, worker.ahead - self._expected.pop(task))
                worker.taken += 1
                worker.until = self._start(task, node, now)

    def _readiest(self, worker: _Worker, node: int, now: float) -> int:
        best, least = worker.queue[0], (1 << 62, 1 << 62)
        for count, task in enumerate(worker.queue):
            lacking = coming = 0
            for tile, letters in self._graph.how[task].items():
                if letters == WRITE:
                    continue
                if self._moves.missing(tile, node):
                    lacking += tile.nbytes
                elif (made := self._moves.made(tile, node)) != NOBODY and self._ends[made] > now:
                    coming += tile.nbytes
            if (lacking + coming, lacking) < least:
                best, least = task, (lacking + coming, lacking)
            if not lacking + coming or count == SEEN:
                break
        return best

    def _start(self, task: int, node: int, now: float) -> float:
        """Carry out a task on a device or in RAM; return when it ends."""
        self._moves.stretch = self._graph.stretches[task]
        self._moves.run(self._graph.tasks[task], node)
        self._time(now)
        heapq.heappush(self._ending, (self._ends[-1], task, node))
        return self._ends[-1]

    def _time(self, now: float) -> None:
        """Work out when each new entry ends: units carry their entries in the order in which these were made."""
        for entry in self._moves.entries[len(self._ends) :]:
            unit = unit_of(entry)
            begins = max([now, self._free[unit], *(self._ends[earlier] for earlier in (*entry.waits, *entry.after))])
            self._free[unit] = begins + self._costs.seconds(entry)
            self._ends.append(self._free[unit])

    def _transfers(self, task: int) -> list[float]:
        """Return, by device, the seconds of the bytes that a task reads and the device lacks."""
        transfers = [0.0] * len(self._workers)
        for tile, letters in self._graph.how[task].items():
            if letters != WRITE:
                there = self._moves.valid_at(tile)
                spent = tile.nbytes / (self._up if len(there) == 1 and IN_RAM in there else self._passed)
                for node in range(len(transfers)):
                    if node not in there:
                        transfers[node] += spent
        return transfers
