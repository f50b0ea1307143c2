"""Who may compute now, of several that want to: turns by virtual time, as a pure ledger; times are given to it.

A party's virtual time grows by what it used of the device, divided by its weight, and the turn goes to the party that is
furthest behind, for a quantum. One that has nothing to compute is passed over and may begin at any moment; it saves up no more
than a quantum. An interactive party takes the turn as soon as it begins, and alone, until it is a burst ahead: its weight is
spent, and it takes turns like others until they have caught up by a quantum.

Not here: what a party holds back without the turn (streams/gate.py), clocks and timers (loop/turns.py).

The way not taken: all run at once, and whoever gets ahead is held back. Weights come out as well, but what two jobs keep in
the caches of one core is driven out at every operation.
"""

from __future__ import annotations

from collections.abc import Callable

#: Seconds for which a party keeps the turn while others want it.
QUANTUM_S = 0.005
#: Virtual seconds by which an interactive party may be ahead of the others before its weight is spent.
BURST_S = 0.05
#: Seconds for which an interactive party keeps all for itself though it has nothing to run.
PATIENCE_S = 0.003
#: Weights beyond this, or below its inverse, count as that.
MOST = 1e6


class Party:
    """weight: above 0. virtual_s: used seconds by weight. used_s, waited_s: of the turn, and without it while it has a job."""

    def __init__(self, weight: float = 1.0, *, interactive: bool = False) -> None:
        self.weight = weight
        self.interactive = interactive
        self.virtual_s = self.used_s = self.waited_s = 0.0
        #: when it was last seen to have something to run
        self.wanted_at = 0.0

    @property
    def pace(self) -> float:
        """Virtual seconds in one that it uses."""
        return 1 / min(max(self.weight, 1 / MOST), MOST)


class TurnLedger:
    """holder: who has the turn; None if nobody wants it. alone: whether it holds back all of the others, copies included.

    parties: those that have a job, in the order in which they began it.
    """

    def __init__(self) -> None:
        self.parties: dict[Party, None] = {}
        self.holder: Party | None = None
        self.alone = False
        #: those that may compute beside the holder: they were behind it and had nothing to run
        self._passed: set[Party] = set()
        self._taken_s = 0.0
        self._at = 0.0
        #: no less than this, but for a quantum, is the virtual time of a party that begins
        self._floor_s = 0.0

    def begin(self, party: Party, now: float) -> None:
        """`party` has a job from now on."""
        self._charge(now)
        party.virtual_s = max(party.virtual_s, self._floor_s - QUANTUM_S)
        party.wanted_at = now
        self.parties[party] = None

    def end(self, party: Party, now: float) -> None:
        """It has none any more."""
        self._charge(now)
        del self.parties[party]
        self._passed.discard(party)
        if self.holder is party:
            self.holder = None

    def decide(self, now: float, wants: Callable[[Party], bool]) -> None:
        """Give the turn to who should have it. wants: whether a party has something to run that must wait for its turn."""
        self._charge(now)
        if len(self.parties) > 1:  # one alone has all turns, and has wanted them since it began
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
        """Whether its operations may begin."""
        return self.holder is None or party is self.holder or party in self._passed

    def may_copy(self, party: Party) -> bool:
        """Whether its copies may begin: those over a link, and to and from a disk."""
        return not self.alone or self.may_compute(party)

    def _goes_first(self, party: Party, now: float) -> bool:
        """Whether it is interactive, and may hold back the others now."""
        if not party.interactive or now - party.wanted_at > PATIENCE_S:
            return False
        others = [other.virtual_s for other in self.parties if other is not party]
        has_all = self.alone and party is self.holder
        return not others or party.virtual_s - min(others) < BURST_S - QUANTUM_S * (not has_all)

    def _give(self, parties: list[Party], *, may_stay: bool) -> None:
        """The turn, to the one that is furthest behind; who has it keeps it for a quantum."""
        if not (may_stay and self.holder in parties and self._taken_s < QUANTUM_S):
            self._taken_s = 0.0
            self.holder = min(parties, key=lambda party: party.virtual_s, default=None)

    def _pass_over(self, wanting: list[Party]) -> None:
        """Who is behind the holder and wants nothing may begin at once when it does, with no more than a quantum saved up."""
        holder = self.holder
        self._passed = set()
        if holder is not None:
            self._passed = {
                party for party in self.parties if party not in wanting and party.virtual_s <= holder.virtual_s
            }
            for party in self._passed:
                party.virtual_s = max(party.virtual_s, holder.virtual_s - QUANTUM_S)

    def _charge(self, now: float) -> None:
        """For the time since the last call."""
        seconds, self._at = max(now - self._at, 0.0), max(now, self._at)
        if not self.parties:
            self._floor_s += seconds  # who was ahead is so no longer
            return
        for party in self.parties:
            if not self.may_compute(party):
                party.waited_s += seconds
        if self.holder is not None:
            self._taken_s += seconds
            self.holder.used_s += seconds
            self.holder.virtual_s += seconds * self.holder.pace
        self._floor_s = max(self._floor_s, min(party.virtual_s for party in self.parties))
