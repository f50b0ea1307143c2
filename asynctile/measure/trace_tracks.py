"""The tracks of a trace: the number of each, by which viewers order them, and its name."""

from __future__ import annotations

import json

from asynctile.hub import ENGINE

#: Tracks of a share, from the top down. With several shares they are called "steps of" the share and so on.
STEPS, PHASES, LAYERS = "steps", "phases", "layers"
_OF_A_SHARE = (STEPS, PHASES, LAYERS)
#: Streams in the order in which a step uses them. Other streams follow as they appear.
_STREAMS = ("compute", "host", "upload", "download", "spill", "unpin", "files")
#: Numbers from one stream to the next, for its stalls and its threads.
_APART = 100


class Tracks:
    """Numbers of tracks, given when a track is first asked for. The events that name a new track are appended to `to`."""

    def __init__(self) -> None:
        self._tids: dict[tuple[str, str], int] = {}
        self._shares = [ENGINE]
        self._streams = list(_STREAMS)

    def of_share(self, share: str, track: str, to: list[str]) -> int:
        """Return the track of steps, phases or layers of a share."""
        found = self._tids.get((share, track))
        if found is None:
            if share not in self._shares:
                self._shares.append(share)
            found = 1 + _OF_A_SHARE.index(track) + len(_OF_A_SHARE) * self._shares.index(share)
            self._name((share, track), found, track if share == ENGINE else f"{track} of {share}", to)
        return found

    def of_stalls(self, stream: str, to: list[str]) -> int:
        """Return the track of a stream's stalls, above its threads."""
        found = self._tids.get((stream, ""))
        if found is None:
            found = self._begin(stream)
            self._name((stream, ""), found, f"{stream} stalls", to)
        return found

    def of_thread(self, stream: str, thread: str, to: list[str]) -> int:
        """Return the track of a thread of a stream."""
        found = self._tids.get((stream, thread))
        if found is None:
            number = thread.removeprefix(f"{stream}-")
            found = self._begin(stream) + 1 + (int(number) if number.isdecimal() else 0)
            self._name((stream, thread), found, thread, to)
        return found

    def _begin(self, stream: str) -> int:
        if stream not in self._streams:
            self._streams.append(stream)
        return _APART * (1 + self._streams.index(stream))

    def _name(self, key: tuple[str, str], tid: int, name: str, to: list[str]) -> None:
        if not self._tids:
            to.append('{"name":"process_name","ph":"M","pid":1,"tid":1,"args":{"name":"asynctile"}}')
        self._tids[key] = tid
        to.append(f'{{"name":"thread_name","ph":"M","pid":1,"tid":{tid},"args":{{"name":{json.dumps(name)}}}}}')
        to.append(f'{{"name":"thread_sort_index","ph":"M","pid":1,"tid":{tid},"args":{{"sort_index":{tid}}}}}')
