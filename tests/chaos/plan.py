"""What happens to the swarm and when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

WARM_UP = 30.0
"""Seconds at the start in which nothing happens."""

RECOVERY = 30.0
"""Seconds at the end in which nothing begins."""

HEALING = 15.0
"""Seconds after a partition in which nothing else begins, so that its heal can be measured."""

SETTLING = 25.0
"""Seconds before the end of a partition in which nothing else begins: a node takes as long to
start, and one that is starting cannot show a heal."""

LONGEST_PAUSE = 30.0


KINDS = (
    *("kill", "young", "pause", "suspend"),
    *("daemon", "network", "verifier", "clock", "disk"),
)
"""Of what befalls one node."""


@dataclass(frozen=True, slots=True)
class Event:
    """One misfortune.

    Attributes:
        at: seconds after the start of the run.
        kind: ``kill``, ``young`` (killed while it starts), ``pause``, ``suspend`` (its daemon is
            stopped too), ``daemon``, ``network`` (the process of that name), ``verifier``,
            ``clock``, ``disk`` or ``partition``.
        node: index of the node, or of the first to be looked at for one that can be hurt so; -1
            for what befalls all.
        seconds: how long it lasts; 0 for what does not last.
        shift: seconds by which the clock moves.
        tries: how often it found nobody to hurt.
    """

    at: float
    kind: str
    node: int
    seconds: float = 0.0
    shift: float = 0.0
    tries: int = 0

    @property
    def detail(self) -> str:
        """Its numbers, for the log."""
        return f"{self.seconds:.1f} s" + (f", {self.shift:+.1f} s" if self.shift else "")


@dataclass(frozen=True, slots=True)
class Dose:
    """How many events of each kind a run has.

    Attributes:
        longest: no event lasts longer, seconds.
        shifts: clock shifts to draw from, seconds: within and beyond what peers tolerate.
    """

    kill: int
    young: int
    pause: int
    suspend: int
    daemon: int
    network: int
    verifier: int
    clock: int
    disk: int
    partition: int
    longest: float = LONGEST_PAUSE
    shifts: Sequence[float] = field(default=(-120.0, -20.0, -2.0, 2.0, 20.0, 120.0))


def dose_of(seconds: float, nodes: int) -> Dose:
    """Events in proportion to time and nodes: 90 kills of eight nodes in 20 minutes, and 40 of
    nodes that are starting, which take less of a small machine.

    Every kind occurs at least once, however short the run.
    """
    share = seconds / 1200.0 * nodes / 8.0

    def about(most: int) -> int:
        return max(1, round(most * share))

    return Dose(
        kill=about(90),
        young=about(40),
        pause=about(12),
        suspend=about(8),
        daemon=about(20),
        network=about(12),
        verifier=about(12),
        clock=about(10),
        disk=about(4),
        partition=max(1, round(seconds / 300.0)),
        longest=min(LONGEST_PAUSE, seconds / 9.0),
    )


def draw(seed: int, seconds: float, nodes: int, dose: Dose, disk_node: int) -> list[Event]:
    """All events in the order of time.

    Args:
        disk_node: whose disk can fill.
    """
    rng = random.Random(f"chaos/{seed}")
    partitions = _partitions(rng, seconds, dose)
    quiet = [(e.at + e.seconds - SETTLING, e.at + e.seconds + HEALING) for e in partitions]
    events = list(partitions)
    for kind in KINDS:
        for _ in range(getattr(dose, kind)):
            least = 0.5 * dose.longest if kind == "disk" else 2.0
            lasts = rng.uniform(least, dose.longest)
            lasting = kind in ("pause", "suspend", "clock", "disk")
            at = _outside(rng, WARM_UP, seconds - RECOVERY, quiet, lasts if lasting else 0.0)
            node = disk_node if kind == "disk" else rng.randrange(nodes)
            shift = rng.choice(list(dose.shifts)) if kind == "clock" else 0.0
            events.append(Event(at, kind, node, lasts if lasting else 0.0, shift))
    return sorted(events, key=lambda e: (e.at, e.kind, e.node))


def _partitions(rng: random.Random, seconds: float, dose: Dose) -> list[Event]:
    """Partitions one after the other, each in its own part of the time."""
    room = (seconds - WARM_UP - RECOVERY) / max(1, dose.partition)
    drawn = []
    for number in range(dose.partition):
        lasts = rng.uniform(min(10.0, dose.longest), dose.longest)
        begin = WARM_UP + number * room
        latest = max(begin, begin + room - lasts - HEALING)
        drawn.append(Event(rng.uniform(begin, latest), "partition", -1, lasts))
    return drawn


def _outside(
    rng: random.Random,
    first: float,
    last: float,
    quiet: Sequence[tuple[float, float]],
    lasts: float,
) -> float:
    """A time in [first, last] from which ``lasts`` seconds do not meet a quiet one."""
    at = first
    for _ in range(1000):
        at = rng.uniform(first, last)
        if all(at + lasts < begin or at > end for begin, end in quiet):
            break
    return at
