"""Situations of a swarm: who is in it, what each can do at the start, and who is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from experiments.bases import Base
from node.errors import UsageError


@dataclass(frozen=True, slots=True)
class Attack:
    """How much a hostile node shares.

    Attributes:
        groups: in each of its frames.
        every: epochs between two frames.
    """

    groups: int
    every: int = 1


@dataclass(frozen=True, slots=True)
class Role:
    """What is special about a node.

    Attributes:
        base: the policy that it starts from.
        judged: whether its rewards are those that the arms are compared by.
        stays: in which part of the experiment it takes part.
        useless: it writes answers of this kind without reading the question, shares them all and
            takes nothing.
        imagines: chance of each group that it shares to be an imagined one in place of its own.
        attack: it has no policy, shares poisoned groups and takes nothing. Nodes that attack have
            the highest numbers of a swarm.
    """

    base: Base = "weak"
    judged: bool = True
    stays: Literal["throughout", "until the middle", "from the middle"] = "throughout"
    useless: Literal["constant", "random"] | None = None
    imagines: float = 0.0
    attack: Attack | None = None

    def span(self, rounds: int) -> range:
        """The rounds, of 1 to ``rounds``, in which it takes part."""
        middle = rounds // 2 + 1
        first = middle if self.stays == "from the middle" else 1
        return range(first, middle if self.stays == "until the middle" else rounds + 1)


Roles = tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class Regime:
    """One situation.

    Attributes:
        name: what the command line and files call it.
        description: one sentence, without its end.
        roles: of a given number of nodes; more roles than nodes where some take others' places.
        partial_credit: rewards are the families' own scores instead of right or wrong.
        watched: what comes from outside into the judged nodes is recorded: the part in updates of
            groups that mean harm or are imagined, and the hostile nodes' trigger in policies too.
    """

    name: str
    description: str
    roles: Callable[[int], Roles]
    partial_credit: bool = False
    watched: Literal["shares", "trigger"] | None = None

    def parts(self, nodes: int) -> dict[Base, tuple[int, ...]]:
        """Numbers of the judged nodes, by the base that they start from."""
        found: dict[Base, tuple[int, ...]] = {}
        for number, role in enumerate(self.roles(nodes)):
            if role.judged:
                found[role.base] = (*found.get(role.base, ()), number)
        return found

    def judged(self, nodes: int) -> tuple[int, ...]:
        """Numbers of the judged nodes."""
        return tuple(number for number, role in enumerate(self.roles(nodes)) if role.judged)


def _all(base: Base) -> Callable[[int], Roles]:
    return lambda nodes: (Role(base),) * nodes


def _halves(first: Base, second: Base) -> Callable[[int], Roles]:
    return lambda nodes: (Role(first),) * (nodes // 2) + (Role(second),) * (nodes - nodes // 2)


def _one(base: Base, among: Base) -> Callable[[int], Roles]:
    return lambda nodes: (Role(base), *(Role(among, judged=False),) * (nodes - 1))


def _churn(nodes: int) -> Roles:
    """Three of eight leave."""
    leaving = max(1, 3 * nodes // 8)
    return (
        *(Role(),) * (nodes - leaving),
        *(Role(stays="until the middle"),) * leaving,
        *(Role(stays="from the middle"),) * leaving,
    )


def _useless(nodes: int) -> Roles:
    constant = Role(judged=False, useless="constant")
    return (*(Role(),) * (nodes - 2), constant, Role(judged=False, useless="random"))


def _imagined(percent: int) -> Regime:
    """Any node's groups may be imagined, so no author is better than another."""
    description = "all that nodes share is experience"
    if percent:
        description = f"{percent} in 100 of the groups that nodes share are imagined"
    role = Role(imagines=percent / 100)
    return Regime(
        f"imagined-{percent}", description, lambda nodes: (role,) * nodes, watched="shares"
    )


HONEST = 7
"""Honest nodes of a swarm with hostile ones, where nobody asks for another number."""
POISONED_GROUPS = 32
"""Groups an epoch of all hostile nodes together: several times what the honest ones share. More
would change little and cost much to simulate."""
SEALED_IN = 8
"""Epochs in which so many keys that no reader can pull all of their frames share one each."""
FRAMES = 24
"""Frames an epoch, of all hostile nodes together, beyond which keys take turns."""


def _attacked(honest: int, hostile: int) -> Roles:
    """Hostile nodes beside honest ones, all of them with the same number of groups an epoch."""
    every = 1 if hostile <= FRAMES else SEALED_IN
    attack = Attack(max(2, every * POISONED_GROUPS // hostile), every)
    return (*(Role(),) * honest, *(Role(judged=False, attack=attack),) * hostile)


def _share(percent: int) -> Callable[[int], Roles]:
    return lambda honest: _attacked(honest, max(1, round(honest * percent / (100 - percent))))


def _keys(times: int) -> Callable[[int], Roles]:
    return lambda honest: _attacked(honest, times * honest)


EQUAL = Regime("equal", "all nodes are equal and weak", _all("weak"))
REGIMES = {
    regime.name: regime
    for regime in (
        EQUAL,
        Regime(
            "divided",
            "half of the nodes were taught one half of the task families, half the other",
            _halves("half-a", "half-b"),
        ),
        Regime("strong", "one strong node among weak ones, judged alone", _one("strong", "weak")),
        Regime("weak", "one weak node among strong ones, judged alone", _one("weak", "strong")),
        Regime(
            "dense",
            "partial credit, and bases that solve more than a tenth of the tasks",
            _all("able"),
            partial_credit=True,
        ),
        Regime(
            "mixed",
            "half of the nodes have another architecture, width and tokenizer",
            _halves("weak", "wide"),
        ),
        Regime(
            "churn",
            "in the middle three of eight nodes leave for good and others join with the base "
            "policy; whoever is present is judged",
            _churn,
        ),
        Regime(
            "useless",
            "two nodes share groups that teach nothing; the others are judged",
            _useless,
        ),
    )
}

IMAGINED = {regime.name: regime for regime in map(_imagined, (0, 10, 25, 50))}
"""Shares of what is not experience, as ImagineBench mixes both (arXiv 2505.10010), half at most."""
UNHARMED = Regime("hostile-0", "honest nodes among themselves", _all("weak"), watched="trigger")
HOSTILE = {
    regime.name: replace(regime, watched="trigger")
    for regime in (
        Regime(
            "hostile-10",
            "one in ten nodes is hostile, or one in all where that is more",
            _share(10),
        ),
        Regime("hostile-30", "three in ten nodes are hostile", _share(30)),
        Regime("hostile-50", "half of the nodes are hostile", _share(50)),
        Regime("keys-3", "three hostile keys for every honest node", _keys(3)),
        Regime("keys-30", "thirty hostile keys for every honest node", _keys(30)),
    )
}
"""The number of nodes is that of the honest ones, who are judged; hostile ones come on top."""
EVERY = {**REGIMES, **IMAGINED, UNHARMED.name: UNHARMED, **HOSTILE}


def find(name: str, among: Mapping[str, Regime] = REGIMES) -> Regime:
    """The regime of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in among:
        raise UsageError("--regime", name, f"Name one of {', '.join(among)}.")
    return among[name]
