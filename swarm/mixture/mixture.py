"""Which external groups an update takes beside the own ones.

An author is drawn first, all alike, and then one of its groups; nobody gives a second one before
everybody else who has any gave one. Groups without advantage are dropped first. How many are taken
is up to a rule (:mod:`swarm.mixture.selection`).

What anybody can get. Let an update be of n groups, own ones included, or of as many as the rule
fills it up to where those are fewer, and let both shares be a quarter, the default:

- one author gets n / 4 of them, but always one;
- all newcomers together (authors whose groups have not yet proved useful here,
  :mod:`swarm.reputation`) get n / 4 too, but always one, however many keys they are. Beside P
  proven authors who have groups left they are drawn as if they were one more, so they get
  1 / (P + 1) of the room;
- among newcomers those come first whose groups were of use so far, then those who were never
  tried, then those who were of no use. So a key that was minted to do harm is taken up once, and
  an honest author whom an update found among ever so many stays until it is proven;
- newcomers spare the node no own group. Beside any number of new keys it generates as if it were
  alone, and only authors who proved useful, each within its cap, take that burden off it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, zip_longest
from types import MappingProxyType
from typing import Any

from swarm.groups import Candidate
from swarm.mixture.peer_advantage import Earned, PeersLead
from swarm.mixture.selection import Auto, MixtureSettings, Selection
from swarm.reputation import PROMISING

NOBODY: Mapping[bytes, float] = MappingProxyType({})
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Caps:
    """Groups that one author, and all newcomers together, may have in one update."""

    author: int
    newcomers: int


class Mixture:
    """A pure state machine: the same seed, observations, turn, own share and set of candidates give
    the same groups.

    Args:
        settings: sizes and bounds of what is taken.
        seed: of this node; other nodes' choices should differ.
        lead: of peers, as far as it is known.
        rule: says how many are taken, and which of an author's first.
        options: of the rule.
        discard: groups without advantage are dropped first.
    """

    def __init__(
        self,
        settings: MixtureSettings,
        seed: int,
        lead: PeersLead | None = None,
        rule: type[Selection] = Auto,
        options: Any = None,
        *,
        discard: bool = True,
    ) -> None:
        self._settings = settings
        self._discard = discard
        self._seed = seed
        self._lead = lead or PeersLead()
        self._rule = rule(settings, self._lead, options)

    def observe(self, groups: Iterable[Earned], proven: Set[bytes]) -> None:
        """Take in what the groups of a round earned, own ones and those that were admitted."""
        self._lead.observe(groups, proven)

    @property
    def lead(self) -> float | None:
        """How far peers are ahead; None where nothing tells."""
        return self._lead.value

    def spared(self, candidates: Iterable[Candidate], proven: Set[bytes]) -> int:
        """Own groups that need not be generated.

        Only unused groups with an advantage count, of authors with standing, and of each no more
        than an update of the published size could take.

        Args:
            candidates: what the pool holds.
            proven: authors with standing.
        """
        settings = self._settings
        held = Counter(
            c.key.author
            for c in candidates
            if c.informative and not c.uses and c.key.author in proven
        )
        cap = self.caps(settings.local + settings.external).author
        takeable = sum(min(count, cap) for count in held.values())
        return min(takeable, round(self._rule.worth * settings.external))

    def caps(self, size: int) -> Caps:
        """What is allowed in an update of ``size`` groups."""
        settings = self._settings
        counted = min(size, self._rule.slots)
        return Caps(
            max(1, int(settings.author_share * counted + _ROUNDING)),
            max(1, int(settings.newcomer_share * counted + _ROUNDING)),
        )

    def wanted(self, informative: int) -> int:
        """External groups that an update has room for.

        Args:
            informative: own groups in the update that have an advantage.
        """
        return self._rule.room(informative)

    def choose(
        self,
        candidates: Iterable[Candidate],
        turn: int,
        informative: int,
        own: int,
        proven: Set[bytes],
        tried: Mapping[bytes, float] = NOBODY,
    ) -> list[Candidate]:
        """As many candidates with advantage as are wanted and the caps allow.

        Those that earlier updates used less often come first.

        Args:
            candidates: with distinct keys; their order does not matter.
            turn: number of the choice, usually the round; each turn draws anew.
            informative: see :meth:`wanted`.
            own: own groups in the update.
            proven: authors with standing.
            tried: what authors have earned of whom updates took a group.

        Returns:
            The chosen; fewer than wanted where there are not enough or the caps forbid more.
        """
        useful = [c for c in candidates if c.informative or not self._discard]
        useful.sort(key=lambda c: (c.uses, c.key))
        room = self.wanted(informative)
        while True:
            # Caps are shares of the update as it comes to be, so a smaller one allows less.
            draw = random.Random(f"mixture/{self._seed}/{turn}")
            chosen = self._draw(useful, draw, room, self.caps(own + room), proven, tried)
            if len(chosen) == room:
                return chosen
            room = len(chosen)

    def within(self, authors: Sequence[bytes], own: int, proven: Set[bytes]) -> list[int]:
        """The places of those groups that the caps of their update allow.

        Args:
            authors: of the external groups that the update is to have.
            own: own groups in the update.
            proven: authors with standing.
        """
        kept = list(range(len(authors)))
        while True:
            caps, taken, left = self.caps(own + len(kept)), Counter[bytes](), list[int]()
            for place in kept:
                author = authors[place]
                strangers = sum(n for each, n in taken.items() if each not in proven)
                if taken[author] < caps.author and (author in proven or strangers < caps.newcomers):
                    taken[author] += 1
                    left.append(place)
            if len(left) == len(kept):
                return left
            kept = left

    def _draw(
        self,
        useful: Sequence[Candidate],
        draw: random.Random,
        room: int,
        caps: Caps,
        proven: Set[bytes],
        tried: Mapping[bytes, float],
    ) -> list[Candidate]:
        """At most ``room`` groups, no author and not the newcomers over their caps."""
        chosen: list[Candidate] = []
        for _, equals in groupby(useful, key=lambda c: c.uses):
            left = room - len(chosen)
            taken = Counter(c.key.author for c in chosen)
            stacks = self._stacks(equals)
            known = _in_turns([s for a, s in stacks.items() if a in proven])
            if self._rule.newest:
                known = known[: self._rule.newest * left]
            lines = [
                line[: caps.author - taken[author]]
                for author, line in self._drawn(_by_author(known), draw).items()
            ]
            strangers = {a: s for a, s in stacks.items() if a not in proven}
            met = sum(count for author, count in taken.items() if author not in proven)
            tiers: defaultdict[int, list[Sequence[Candidate]]] = defaultdict(list)
            for author, line in self._drawn(strangers, draw).items():
                tiers[_tier(author, tried)].append(line[: caps.author - taken[author]])
            newcomers = [c for _, lines in sorted(tiers.items()) for c in _in_turns(lines)]
            newcomers = newcomers[: caps.newcomers - met]
            # All newcomers together are one voice among those of proven authors.
            lines.insert(draw.randint(0, len(lines)), newcomers)
            chosen += _in_turns(lines)[:left]
        return chosen

    def _stacks(self, candidates: Iterable[Candidate]) -> dict[bytes, list[Candidate]]:
        """Groups by author, those who gave the newest first; a rule may look at these alone."""
        newest = sorted(candidates, key=lambda c: (-c.received, c.key))
        stacks = _by_author(newest)
        if not self._rule.newest:
            return stacks
        most = self._rule.newest * self.caps(self._rule.slots).author
        return {author: stack[:most] for author, stack in stacks.items()}

    def _drawn(
        self, stacks: Mapping[bytes, Sequence[Candidate]], draw: random.Random
    ) -> dict[bytes, list[Candidate]]:
        """Authors in a drawn order, and of each the groups as the rule orders them."""
        authors = sorted(stacks)
        draw.shuffle(authors)
        return {author: self._rule.order(stacks[author], draw) for author in authors}


def _by_author(candidates: Iterable[Candidate]) -> dict[bytes, list[Candidate]]:
    stacks: defaultdict[bytes, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        stacks[candidate.key.author].append(candidate)
    return dict(stacks)


def _tier(author: bytes, tried: Mapping[bytes, float]) -> int:
    """When a newcomer's turn comes: first those of use, then those not tried, then the others."""
    if author not in tried:
        return 1
    return 0 if tried[author] >= PROMISING else 2


def _in_turns(lines: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """The first of every line, then the second of every line that has one, and so on."""
    return [c for row in zip_longest(*lines) for c in row if c is not None]
