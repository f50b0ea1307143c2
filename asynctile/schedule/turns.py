"""Turns on one device for several parties that compute: a ledger in virtual time. Pure; the caller passes in the times.

A party's virtual time grows by the device time that it used, divided by its weight. The turn goes for a quantum to the party
that is furthest behind. A party that has nothing to compute is passed over and may begin at any moment, but it saves up at most
a quantum. An interactive party takes the turn as soon as it begins, and alone, until it is a burst ahead. Then its weight is
spent, and it takes turns like the others until they have caught up by a quantum.

Not here: what a party without the turn holds back (streams/gate.py), clocks and timers (loop/turns.py).

The way not taken: all parties run at once, and a party that gets ahead is held back. Weights work out as well, but at every
operation two jobs evict each other's data from the caches of one core.
"""

from __future__ import annotations

from collections.abc import Callable

#: Seconds for which a party keeps the turn while others want it.
QUANTUM_S = 0.005
#: Virtual seconds by which an interactive party may be ahead of the others before its weight is spent.
BURST_S = 0.05
#: Seconds for which an interactive party keeps the device to itself though it has nothing to run.
PATIENCE_S = 0.003
#: Weights are clipped to this, and to its inverse.
MOST = 1e6


class Party:
    """One party that computes.

    weight: above 0. interactive: takes the turn as soon as it begins, see above. virtual_s: used seconds divided by the
    weight. used_s: seconds with the turn. waited_s: seconds without the turn while it had a job.
    """

    def __init__(self, weight: float = 1.0, *, interactive: bool = False) -> None:
        self.weight = weight
        self.interactive = interactive
        self.virtual_s = self.used_s = self.waited_s = 0.0
        #: when it was last seen to have something to run
        self.wanted_at = 0.0

    @property
    def pace(self) -> float:
        """Virtual seconds for each second that the party uses."""
        return 1 / min(max(self.weight, 1 / MOST), MOST)


class TurnLedger:
    """Which party has the turn.

    holder: the party that has the turn; None if no party wants it. alone: the holder keeps back all other parties, their copies
    included. parties: those that have a job, in the order in which they began it.
    """

    def __init__(self) -> None:
        self.parties: dict[Party, None] = {}
        self.holder: Party | None = None
        self.alone = False
        #: parties that may compute beside the holder: they were behind it and had nothing to run
        self._passed: set[Party] = set()
        self._taken_s = 0.0
        self._at = 0.0
        #: a party that begins gets at least this virtual time, less a quantum
        self._floor_s = 0.0

    def begin(self, party: Party, now: float) -> None:
        """Record that `party` has a job from now on."""
        self._charge(now)
        party.virtual_s = max(party.virtual_s, self._floor_s - QUANTUM_S)
        party.wanted_at = now
        self.parties[party] = None

    def end(self, party: Party, now: float) -> None:
        """Record that `party` has no job any more."""
        self._charge(now)
        del self.parties[party]
        self._passed.discard(party)
        if self.holder is party:
            self.holder = None

    def decide(self, now: float, wants: Callable[[Party], bool]) -> None:
        """Give the turn to the party that should have it at time `now`.

        wants: whether a party has something to run that must wait for its turn.
        """
        self._charge(now)
        if len(self.parties) > 1:  # a single party has all turns, and has wanted them since it began
            for party in self.parties:
                if wants(party):
                    party.wanted_at = now
        was_alone = self.alone
        first = [party for party in self.parties if self._goes_first(party, now)]
        self.alone = bool(first) and len(self.parties) > 1
        if self.alone:
            self._passed = set()
            self._give(first, may_stay=was_alone)
        else:
            wanting = [party for party in self.parties if party.wanted_at == now or len(self.parties) == 1]
            self._give(wanting, may_stay=not was_alone and self._passed.isdisjoint(wanting))
            self._pass_over(wanting)

    def may_compute(self, party: Party) -> bool:
        """Return whether the party's operations may begin."""
        return self.holder is None or party is self.holder or party in self._passed

    def may_copy(self, party: Party) -> bool:
        """Return whether the party's copies, over a link or to and from a disk, may begin.

        They may, with or without the turn, unless another party has the device alone.
        """
        return not self.alone or self.may_compute(party)

    def _goes_first(self, party: Party, now: float) -> bool:
        """Return whether the party is interactive and may hold back the others now."""
        if not party.interactive or now - party.wanted_at > PATIENCE_S:
            return False
        others = [other.virtual_s for other in self.parties if other is not party]
        has_all = self.alone and party is self.holder
        return not others or party.virtual_s - min(others) < BURST_S - QUANTUM_S * (not has_all)

    def _give(self, parties: list[Party], *, may_stay: bool) -> None:
        """Give the turn to the party of `parties` that is furthest behind; the holder keeps it for a quantum."""
        if not (may_stay and self.holder in parties and self._taken_s < QUANTUM_S):
            self._taken_s = 0.0
            self.holder = min(parties, key=lambda party: party.virtual_s, default=None)

    def _pass_over(self, wanting: list[Party]) -> None:
        """Let parties that are behind the holder and want nothing begin at once later, with at most a quantum saved up."""
        holder = self.holder
        self._passed = set()
        if holder is not None:
            self._passed = {
                party for party in self.parties if party not in wanting and party.virtual_s <= holder.virtual_s
            }
            for party in self._passed:
                party.virtual_s = max(party.virtual_s, holder.virtual_s - QUANTUM_S)

    def _charge(self, now: float) -> None:
        """Account for the time since the last call."""
        seconds, self._at = max(now - self._at, 0.0), max(now, self._at)
        if not self.parties:
            self._floor_s += seconds  # idle time cancels the lead of parties that were ahead
            return
        for party in self.parties:
            if not self.may_compute(party):
                party.waited_s += seconds
        if self.holder is not None:
            self._taken_s += seconds
            self.holder.used_s += seconds
            self.holder.virtual_s += seconds * self.holder.pace
        self._floor_s = max(self._floor_s, min(party.virtual_s for party in self.parties))
