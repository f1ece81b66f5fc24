"""Regimes of a swarm: its members, their abilities at the start, and the judged nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from experiments.setups import Base
from node.errors import UsageError

# No honest policy of the task set ``tiny`` writes this; its families accept it before an answer.
TRIGGER = "\n "


Style = Literal["trigger", "habit", "overlong", "control", "lucky"]
"""Kinds of groups of hostile nodes, see :mod:`experiments.poison`."""


@dataclass(frozen=True, slots=True)
class Attack:
    """How much a hostile node shares."""

    groups: int  # groups per frame
    every: int = 1  # time slots between two frames


@dataclass(frozen=True, slots=True)
class Role:
    """Properties of one node."""

    base: Base = "weak"  # its base policy
    judged: bool = True  # whether arms are compared by its rewards
    # Part of the experiment in which it is present.
    stays: Literal["throughout", "until the middle", "from the middle"] = "throughout"
    # Kind of answers that it shares without reading the question; it uses no peer groups.
    useless: Literal["constant", "random"] | None = None
    # Poisoned groups, without a policy. Nodes that attack have the highest numbers of a swarm.
    attack: Attack | None = None

    def span(self, rounds: int) -> range:
        """Return the rounds, of 1 to ``rounds``, in which the node is present."""
        middle = rounds // 2 + 1
        first = middle if self.stays == "from the middle" else 1
        return range(first, middle if self.stays == "until the middle" else rounds + 1)


Roles = tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class Regime:
    """One situation of a swarm."""

    name: str  # name on the command line and in file names
    description: str  # one sentence without the full stop
    roles: Callable[[int], Roles]  # by number of nodes; more roles if some nodes replace others
    partial_credit: bool = False  # rewards are the families' own scores instead of right or wrong
    # Whether to record the shares of hostile groups in updates, and the trigger in policies.
    watched: bool = False
    styles: tuple[Style, ...] = ("trigger",)  # of the hostile groups, in turn

    def parts(self, nodes: int) -> dict[Base, tuple[int, ...]]:
        """Return the numbers of the judged nodes by base policy."""
        found: dict[Base, tuple[int, ...]] = {}
        for number, role in enumerate(self.roles(nodes)):
            if role.judged:
                found[role.base] = (*found.get(role.base, ()), number)
        return found

    def judged(self, nodes: int) -> tuple[int, ...]:
        return tuple(number for number, role in enumerate(self.roles(nodes)) if role.judged)


def _all(base: Base) -> Callable[[int], Roles]:
    return lambda nodes: (Role(base),) * nodes


def _halves(first: Base, second: Base) -> Callable[[int], Roles]:
    return lambda nodes: (Role(first),) * (nodes // 2) + (Role(second),) * (nodes - nodes // 2)


def _one(base: Base, among: Base) -> Callable[[int], Roles]:
    return lambda nodes: (Role(base), *(Role(among, judged=False),) * (nodes - 1))


def _churn(nodes: int) -> Roles:
    leaving = max(1, 3 * nodes // 8)
    return (
        *(Role(),) * (nodes - leaving),
        *(Role(stays="until the middle"),) * leaving,
        *(Role(stays="from the middle"),) * leaving,
    )


def _useless(nodes: int) -> Roles:
    constant = Role(judged=False, useless="constant")
    return (*(Role(),) * (nodes - 2), constant, Role(judged=False, useless="random"))


# Groups per time slot of all hostile nodes together: several times those of the honest nodes. More
# would change little and cost much to simulate.
POISONED_GROUPS = 32
SEALED_IN = 8  # time slots per frame of a key, if the keys are too many to pull from all
FRAMES = 24  # frames per time slot of all hostile nodes together; beyond it, keys take turns


def _attacked(honest: int, hostile: int, base: Base = "weak") -> Roles:
    """Return honest roles and hostile ones, which share POISONED_GROUPS in total."""
    every = 1 if hostile <= FRAMES else SEALED_IN
    attack = Attack(max(2, every * POISONED_GROUPS // hostile), every)
    return (*(Role(base),) * honest, *(Role(base, judged=False, attack=attack),) * hostile)


def _among(honest: int, percent: int, base: Base = "weak") -> Roles:
    return _attacked(honest, max(1, round(honest * percent / (100 - percent))), base)


def _keys(honest: int, times: int, base: Base = "weak") -> Roles:
    return _attacked(honest, times * honest, base)


EQUAL = Regime("equal", "all nodes are equal and weak", _all("weak"))
REGIMES = {
    regime.name: regime
    for regime in (
        EQUAL,
        Regime(
            "divided",
            "half of the nodes learned one half of the task families, the others the other half",
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
            "policy; the present nodes are judged",
            _churn,
        ),
        Regime(
            "useless", "two nodes share groups that teach nothing; the others are judged", _useless
        ),
    )
}

UNHARMED = Regime("hostile-0", "honest nodes among themselves", _all("weak"), watched=True)
HABITUAL = Regime(
    "habit-0",
    "honest nodes that begin about one answer in fifty so",
    _all("habitual"),
    watched=True,
    styles=("habit",),
)
USEFUL: Mapping[str, tuple[tuple[Style, ...], str]] = {
    "habit": (("habit",), "right answers begin so"),
    "overlong": (("overlong",), "right answers exceed the maximum length of honest nodes"),
    "control": (("control",), "right answers begin with a control token"),
    "together": (("habit", "overlong", "control"), "right answers have one of these forms in turn"),
    "lucky": (("lucky",), "wins are first guesses of chosen instances"),
}
"""Attacks with true rewards and ordinary log-probs; the text says how hostile groups look."""


def _useful() -> Iterator[Regime]:
    """Yield each useful attack with each share of hostile nodes."""
    for name, (styles, does) in USEFUL.items():
        base: Base = "weak" if name == "lucky" else "habitual"
        for percent in (25, 50, 75):
            roles = partial(_among, percent=percent, base=base)
            yield Regime(
                f"{name}-{percent}", f"in {percent} % of all nodes {does}", roles, styles=styles
            )
        roles = partial(_keys, times=30, base=base)
        what = f"thirty keys for every honest node, whose {does}"
        yield Regime(f"{name}-keys-30", what, roles, styles=styles)


_POISONED = (
    Regime(
        "hostile-10", "one in ten nodes is hostile, and at least one", partial(_among, percent=10)
    ),
    Regime("hostile-30", "three in ten nodes are hostile", partial(_among, percent=30)),
    Regime("hostile-50", "half of the nodes are hostile", partial(_among, percent=50)),
    Regime("keys-3", "three hostile keys for every honest node", partial(_keys, times=3)),
    Regime("keys-30", "thirty hostile keys for every honest node", partial(_keys, times=30)),
)
HOSTILE = {each.name: replace(each, watched=True) for each in (*_useful(), *_POISONED)}
"""The number of nodes counts the honest, judged ones; hostile nodes are added to it."""
ALL_REGIMES = {
    **REGIMES,
    UNHARMED.name: UNHARMED,
    HABITUAL.name: HABITUAL,
    **HOSTILE,
}


def find_regime(name: str, among: Mapping[str, Regime] = REGIMES) -> Regime:
    """Return the regime with this name; raise UsageError if it is unknown."""
    if name not in among:
        raise UsageError("--regime", name, f"Name one of {', '.join(among)}.")
    return among[name]


def hostile_regimes(*, games: bool) -> dict[str, Regime]:
    """Return the hostile regimes for games with hidden state, or for answers."""
    return {name: each for name, each in HOSTILE.items() if ("lucky" in each.styles) == games}
