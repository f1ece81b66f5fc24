"""Choose the peers' groups that join the local groups of an update.

Each step samples an author uniformly, then one of its groups. No author gives a second group before
every author with groups has given one. Uninformative groups are dropped first. The selection rule
(:class:`Selection`) sets the number of groups.

Guarantees for an update of n groups, local ones included, where n is at most the rule's size, with
both shares at the default of a quarter:

- One author gets at most n / 4 groups, but always one.
- All unproven authors (:mod:`swarm.reputation`) together get at most n / 4, but always one,
  whatever their number of keys. Beside P proven authors they count as one more and get 1 / (P + 1).
- Among unproven authors, those with useful groups and untried ones take turns; useless and
  penalized ones come last. A key minted to do harm is taken once, a useful honest author stays
  until it is proven, and no key that is neither keeps newcomers out.
- Only proven authors, each within its cap, reduce the number of local groups.

Authors that the user trusts have no cap, and count as proven: one of them may fill all the room.
"""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, zip_longest
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from swarm.groups import Candidate
from swarm.peer_advantage import PeerAdvantage
from swarm.reputation import PROMISING


class MixtureSettings(Protocol):
    """Composition of an update in groups: keys of the ``mixture`` section."""

    local: int  # I, local groups that an update always has
    external: int  # J, local groups that peers' groups replace; 0 disables them
    target_groups: int  # maximum informative groups, local and peers', to fill an update up to
    author_share: float  # maximum fraction of an update's groups from one author
    unproven_share: float  # maximum fraction of an update's groups from all unproven authors


class Selection(ABC):
    """A rule for the peers' groups in an update (plugins: ``swarm_node.selections``).

    The caps and the sampling of authors before groups apply to every rule
    (:mod:`swarm.mixture`).
    """

    Options: ClassVar[Any] = None  # pydantic model of ``mixture.select_options``, or None
    # Sample among an author's newest groups, this multiple of the room; None: all.
    newest: ClassVar[int | None] = None

    def __init__(self, sizes: MixtureSettings, peers: PeerAdvantage, options: Any = None) -> None:
        self.sizes = sizes
        self.advantage = peers
        self.options = options

    @property
    @abstractmethod
    def slots(self) -> int:
        """Groups that an update is made for, and the maximum base of the shares."""

    @abstractmethod
    def room(self, informative: int) -> int:
        """Return the room for peers' groups beside ``informative`` local groups."""

    @property
    def worth(self) -> float:
        """Fraction of proven peers' groups that replaces local groups, in [0, 1]."""
        return 1.0

    def order(self, groups: Sequence[Candidate], rng: random.Random) -> list[Candidate]:
        """Return one author's groups in random order, with ``rng`` as only randomness."""
        return rng.sample(groups, len(groups))


class AutoSelection(Selection):
    """Fills an update with informative groups, scaled by the peers' advantage and their cost.

    Groups with equal rewards teach nothing, so an update is filled up to a fixed number of
    informative groups, local ones first. Dynamic sampling does so by generating more (DAPO, arXiv
    2503.14476, section 3.2). If peers earn less on tasks of the same level, or their groups cost
    more time than informative local ones, fewer of their groups are taken and they replace fewer
    local ones. If the replay buffer holds far more groups than needed, the newest are sampled,
    because old groups do not represent their authors.
    """

    newest = 4

    @property
    def slots(self) -> int:
        return self.sizes.target_groups

    def room(self, informative: int) -> int:
        if self.sizes.external == 0:
            return 0
        room = max(0, self.sizes.target_groups - informative)
        # Always take one; otherwise the node could not see that peers catch up.
        return max(min(1, room), round(self.worth * room))

    @property
    def worth(self) -> float:
        return self.advantage.worth


class UniformSelection(Selection):
    """Takes at most J groups, as SAPO does (arXiv 2509.08721, section 3 and setup)."""

    @property
    def slots(self) -> int:
        return self.sizes.local + self.sizes.external

    def room(self, informative: int) -> int:
        return self.sizes.external


NOBODY: Mapping[bytes, float] = MappingProxyType({})
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Caps:
    """Maximum groups in an update of one author, and of all unproven authors."""

    author: int
    unproven: int
    trusted: Set[bytes] = frozenset()  # authors without a cap

    def most(self, author: bytes) -> int:
        return sys.maxsize if author in self.trusted else self.author


class Mixture:
    """A pure state machine: equal seeds, observations and arguments give equal groups.

    ``seed`` makes the choices of nodes differ. ``rule`` sets the number of groups and the order of
    an author's. ``discard`` drops uninformative groups.
    """

    def __init__(
        self,
        settings: MixtureSettings,
        seed: int,
        rule: Selection | None = None,
        *,
        discard: bool = True,
    ) -> None:
        self._settings = settings
        self._discard = discard
        self._seed = seed
        self._rule = rule or AutoSelection(settings, PeerAdvantage())

    def replaced(
        self, candidates: Iterable[Candidate], proven: Set[bytes], trusted: Set[bytes] = frozenset()
    ) -> int:
        """Return the number of local groups that need not be generated.

        Only unused informative groups of ``proven`` authors count, up to the cap per author.
        """
        settings = self._settings
        counts = Counter(
            c.key.author
            for c in candidates
            if c.informative and not c.uses and c.key.author in proven
        )
        caps = self.caps(settings.local + settings.external, trusted)
        available = sum(min(count, caps.most(author)) for author, count in counts.items())
        return min(available, round(self._rule.worth * settings.external))

    def caps(self, size: int, trusted: Set[bytes] = frozenset()) -> Caps:
        settings = self._settings
        base = min(size, self._rule.slots)
        return Caps(
            max(1, int(settings.author_share * base + _ROUNDING)),
            max(1, int(settings.unproven_share * base + _ROUNDING)),
            trusted,
        )

    def wanted(self, informative: int) -> int:
        """Return the room for peers' groups beside ``informative`` local groups."""
        return self._rule.room(informative)

    def choose(
        self,
        candidates: Iterable[Candidate],
        turn: int,
        informative: int,
        local: int,
        proven: Set[bytes],
        tried: Mapping[bytes, float] = NOBODY,
        trusted: Set[bytes] = frozenset(),
    ) -> list[Candidate]:
        """Choose as many informative candidates as wanted and allowed by the caps.

        Candidates have distinct keys; those used less often come first. Each ``turn``, usually the
        round, samples again. ``informative`` of the ``local`` groups in the update are so.
        ``tried`` are earnings of authors with a group in an earlier update or with a penalty.
        ``trusted`` authors are among the ``proven``.
        """
        useful = [c for c in candidates if c.informative or not self._discard]
        useful.sort(key=lambda c: (c.uses, c.key))
        size = self.wanted(informative)
        while True:
            # Caps are shares of the final update, so a smaller update allows less.
            rng = random.Random(f"mixture/{self._seed}/{turn}")
            groups = self._draw(useful, rng, size, self.caps(local + size, trusted), proven, tried)
            if len(groups) == size:
                return groups
            size = len(groups)

    def within(
        self,
        authors: Sequence[bytes],
        local: int,
        proven: Set[bytes],
        trusted: Set[bytes] = frozenset(),
    ) -> list[int]:
        """Return the indices of peers' groups, by ``authors``, that the caps allow."""
        indices = list(range(len(authors)))
        while True:
            caps, counts = self.caps(local + len(indices), trusted), Counter[bytes]()
            remaining = list[int]()
            for index in indices:
                author = authors[index]
                unproven = sum(n for other, n in counts.items() if other not in proven)
                allowed = author in proven or unproven < caps.unproven
                if counts[author] < caps.most(author) and allowed:
                    counts[author] += 1
                    remaining.append(index)
            if len(remaining) == len(indices):
                return remaining
            indices = remaining

    def _draw(
        self,
        useful: Sequence[Candidate],
        rng: random.Random,
        room: int,
        caps: Caps,
        proven: Set[bytes],
        earnings: Mapping[bytes, float],
    ) -> list[Candidate]:
        """Return at most ``room`` groups within the caps, those of fewer uses first.

        The authors take turns, and all unproven authors together count as one of them.
        """
        groups: list[Candidate] = []
        for _, candidates in groupby(useful, key=lambda c: c.uses):
            remaining = room - len(groups)
            counts = Counter(c.key.author for c in groups)
            stacks = self._stacks(candidates, caps.trusted)
            newest = _in_turns([stack for author, stack in stacks.items() if author in proven])
            if self._rule.newest:
                newest = newest[: self._rule.newest * remaining]
            queues: list[Sequence[Candidate]] = [
                queue[: caps.most(author) - counts[author]]
                for author, queue in self._drawn(_by_author(newest), rng).items()
            ]
            others = {author: stack for author, stack in stacks.items() if author not in proven}
            unproven = {
                author: queue[: caps.author - counts[author]]
                for author, queue in self._drawn(others, rng).items()
            }
            unproven_count = sum(n for author, n in counts.items() if author not in proven)
            combined = _hopeful_first(unproven, earnings, rng)[: caps.unproven - unproven_count]
            queues.insert(rng.randint(0, len(queues)), combined)
            groups += _in_turns(queues)[:remaining]
        return groups

    def _stacks(self, candidates: Iterable[Candidate], trusted: Set[bytes]) -> _Stacks:
        """Return groups by author, newest first, limited to those that the rule uses."""
        stacks = _by_author(sorted(candidates, key=lambda c: (-c.received, c.key)))
        if not self._rule.newest:
            return stacks
        caps, multiple = self.caps(self._rule.slots, trusted), self._rule.newest
        return {author: stack[: multiple * caps.most(author)] for author, stack in stacks.items()}

    def _drawn(self, stacks: Mapping[bytes, Sequence[Candidate]], rng: random.Random) -> _Stacks:
        """Return authors in random order, each with its groups in the rule's order."""
        authors = sorted(stacks)
        rng.shuffle(authors)
        return {author: self._rule.order(stacks[author], rng) for author in authors}


def _by_author(candidates: Iterable[Candidate]) -> _Stacks:
    stacks: defaultdict[bytes, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        stacks[candidate.key.author].append(candidate)
    return dict(stacks)


_Lines = list[Sequence[Candidate]]
_Stacks = dict[bytes, list[Candidate]]


def _hopeful_first(
    queues: Mapping[bytes, Sequence[Candidate]], earnings: Mapping[bytes, float], rng: random.Random
) -> list[Candidate]:
    """Let authors with useful groups and untried ones take turns, then those without use."""
    useful, untried, useless = _Lines(), _Lines(), _Lines()
    for author, queue in queues.items():
        if author not in earnings:
            untried.append(queue)
        else:
            (useful if earnings[author] >= PROMISING else useless).append(queue)
    hopeful = [_in_turns(useful), _in_turns(untried)]
    rng.shuffle(hopeful)
    return _in_turns(hopeful) + _in_turns(useless)


def _in_turns(queues: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """Return the first of every line, then the second of every line, and so on."""
    return [c for row in zip_longest(*queues) for c in row if c is not None]
