"""The events of a trace: messages of a recorder in the Trace Event Format, one JSON object per line.

Pure: no file and no clock. Phases in use: X, a span; M, name and place of a track; C, a counter; i, an instant; s and
f, the ends of an arrow. The spans of one track never overlap, as viewers require. Times are microseconds since the
beginning of the trace. pid and tid are numbers of tracks, not of the system, because viewers order by them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping

from asynctile.measure.trace_tracks import LAYERS, PHASES, STEPS, Tracks
from asynctile.measure.trace_words import as_json, describe, text_of, waiting, waits_for
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.streams.recorder import Begun, Message, Ran, Stalled, Stepped

#: Most texts kept for events that come again each step, about a third of a KiB each.
_KEPT = 1 << 15
#: Two nanoseconds: from the end of a span to a point just inside it.
_INSIDE_S = 2e-9


class TraceEvents:
    """The events of one trace that began at `start`, time.perf_counter."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._tracks = Tracks()
        self._texts: dict[tuple[str, object], tuple[str, str]] = {}
        self._flows = itertools.count(1)
        #: by operation, the sections that begin with it, as (share, track, section); an empty section ends the track
        self._marks: dict[object, list[tuple[str, str, str]]] = {}
        self._programs: dict[str, Program] = {}
        #: by track of phases or layers, the open section and when it began
        self._open: dict[tuple[str, str], tuple[str, float]] = {}
        #: by track of phases or layers, when its last span began or ended
        self._reached: dict[tuple[str, str], float] = {}
        self._latest = start

    def add(self, message: Message, to: list[str]) -> None:
        """Append the events of a message to `to`, after the names of tracks that are new."""
        if isinstance(message, Ran):
            self._ran(message, to)
        elif isinstance(message, Stalled):
            self._stalled(message, to)
        elif isinstance(message, Begun):
            self._begun(message, to)
        elif isinstance(message, Stepped):
            tid = self._tracks.of_share(message.share, STEPS, to)
            name, args = json.dumps(message.name), as_json(dict(message.args))
            to.append(self._span(name, "step", tid, message.began, message.ended, args))

    def counters(self, name: str, values: Mapping[str, float], now: float) -> str:
        """Return a counter event with a line for each value."""
        return f'{{"name":{json.dumps(name)},"ph":"C","ts":{self._us(now)},"pid":1,"args":{as_json(dict(values))}}}'

    def lost(self, count: int, now: float) -> str:
        """Return an instant event that says that `count` messages are missing before this moment."""
        return (f'{{"name":"{count} events are missing here","cat":"trace","ph":"i","s":"p","ts":{self._us(now)},'
                f'"pid":1,"tid":1,"args":{{"lost":{count}}}}}')  # fmt: skip

    def end(self) -> list[str]:
        """End all open sections at the end of the last piece of work; return their events."""
        found: list[str] = []
        for key in list(self._open):
            self._close(key, self._latest, found)
        return found

    def _ran(self, ran: Ran, to: list[str]) -> None:
        stream, thread, verb, what, _, began, ended, _ = ran
        tid = self._tracks.of_thread(stream, thread, to)
        began = max(began - self._start, 0.0)
        lasted = max(ended - self._start - began, 0.0)
        name, rest = self._text(stream, verb, what)
        to.append(f'{{"name":{name},"ph":"X","ts":{began * 1e6:.3f},"dur":{lasted * 1e6:.3f},"pid":1,"tid":{tid},{rest}}}')
        if ended > self._latest:
            self._latest = ended
        for share, track, section in self._marks.get(what, ()):
            if not section:
                self._close((share, track), ended, to)
            elif ran.began >= self._reached.get((share, track), 0.0):  # else another thread has reported the next section
                self._close((share, track), ran.began, to)
                self._open[share, track] = section, ran.began
                self._reached[share, track] = ran.began

    def _stalled(self, stall: Stalled, to: list[str]) -> None:
        copy, lasted = stall.copy, stall.ended - stall.began
        tid, tile = self._tracks.of_stalls(stall.stream, to), describe(copy.what)
        args = {
            "operation": waiting(stall), "tile": tile, "bytes": getattr(copy.what, "nbytes", 0),
            "waits_for": waits_for(stall), "since_us": round(max(stall.since - self._start, 0.0) * 1e6, 3),
            "idle_us": round(stall.idle_s * 1e6, 3), "threads": round(stall.idle_s / lasted, 2) if lasted else 0,
        }  # fmt: skip
        to.append(self._span(json.dumps(f"waits for {tile}"), "stall", tid, stall.began, stall.ended, as_json(args)))
        left = min(copy.ended, stall.ended) - _INSIDE_S  # there are two clocks where a GPU waited for its host
        if left > max(copy.began, self._start) and lasted > 2 * _INSIDE_S:
            of_copy = self._tracks.of_thread(copy.stream, copy.thread, to)
            arrow = f'"name":"arrives","cat":"stall","id":{next(self._flows)},"pid":1'
            to.append(f'{{{arrow},"ph":"s","ts":{self._us(left)},"tid":{of_copy}}}')
            to.append(f'{{{arrow},"ph":"f","bp":"e","ts":{self._us(stall.ended - _INSIDE_S)},"tid":{tid}}}')

    def _begun(self, begun: Begun, to: list[str]) -> None:
        share, program = begun
        for key in [key for key in self._open if key[0] == share]:  # the last run was broken off
            self._close(key, self._latest, to)
        if self._programs.get(share) is program:
            return
        self._programs[share] = program
        kept = {what: [mark for mark in marks if mark[0] != share] for what, marks in self._marks.items()}
        self._marks = {what: marks for what, marks in kept.items() if marks}
        for what, track, section in _marks_of(program):
            self._marks.setdefault(what, []).append((share, track, section))

    def _close(self, key: tuple[str, str], ended: float, to: list[str]) -> None:
        found = self._open.pop(key, None)
        if found is not None:
            tid, ended = self._tracks.of_share(*key, to), max(found[1], ended)
            to.append(self._span(json.dumps(found[0]), key[1][:-1], tid, found[1], ended, "{}"))
            self._reached[key] = ended

    def _span(self, name: str, category: str, tid: int, began: float, ended: float, args: str) -> str:
        began = max(began, self._start)
        return (f'{{"name":{name},"cat":"{category}","ph":"X","ts":{self._us(began)},"dur":{max(ended - began, 0.0) * 1e6:.3f},'
                f'"pid":1,"tid":{tid},"args":{args}}}')  # fmt: skip

    def _text(self, stream: str, verb: str, what: object) -> tuple[str, str]:
        """Return name, category and arguments of a piece of work; cached, since steps repeat."""
        way = stream.partition(":")[0]  # without the number of its device
        key = way if way in ("upload", "download") else verb, what
        found = self._texts.get(key)
        if found is None:
            if len(self._texts) >= _KEPT:
                self._texts.clear()
            found = self._texts[key] = text_of(*key)
        return found

    def _us(self, time_s: float) -> str:
        return f"{max(time_s - self._start, 0.0) * 1e6:.3f}"


def _marks_of(program: Program) -> Iterator[tuple[Operation, str, str]]:
    """Yield (operation, track, section) for each section that begins with the operation; an empty section ends the track."""
    operations = [(index, entry) for index, entry in enumerate(program.entries) if isinstance(entry, Operation)]
    ahead = iter(operations)
    here = next(ahead, None)
    phase = ""
    for begin, section in program.sections:
        while here is not None and here[0] < begin:
            here = next(ahead, None)
        if here is None:
            break
        if section.phase != phase:
            phase = section.phase
            yield here[1], PHASES, phase
        yield here[1], LAYERS, section.name
    if operations and program.sections:
        yield operations[-1][1], PHASES, ""
        yield operations[-1][1], LAYERS, ""
