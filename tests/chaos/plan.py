"""What happens to the swarm and when: a pure function of the seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP, RECOVERY = 30.0, 30.0
"""Seconds at the start in which nothing happens, and at the end in which nothing begins."""
HEALING = 15.0
"""Seconds after a partition in which nothing else begins, so that its heal can be measured."""
SETTLING = 25.0
"""Seconds before the end of a partition in which nothing else begins: a node takes as long to
start, and one that is starting cannot show a heal."""
LONGEST_PAUSE = 30.0
SHIFTS = (-120.0, -20.0, -2.0, 2.0, 20.0, 120.0)
"""Clock shifts to draw from, seconds: within and beyond what peers tolerate."""
MOST = {
    "kill": 90,
    "young": 40,
    "pause": 12,
    "suspend": 8,
    "daemon": 20,
    "network": 12,
    "verifier": 12,
    "clock": 10,
    "disk": 4,
}
"""Of what befalls one node: how often it befalls one of eight nodes in 20 minutes. Nodes that are
starting are killed less, as they take less of a small machine."""


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
        return f"{self.seconds:.1f} s" + (f", {self.shift:+.1f} s" if self.shift else "")


def draw(seed: int, seconds: float, nodes: int, disk_node: int) -> list[Event]:
    """All events in the order of time; the disk of ``disk_node`` can fill.

    They are in proportion to time and nodes, and every kind occurs at least once, however short
    the run.
    """
    rng = random.Random(f"chaos/{seed}")
    longest = min(LONGEST_PAUSE, seconds / 9.0)
    partitions = _partitions(rng, seconds, longest)
    quiet = [(e.at + e.seconds - SETTLING, e.at + e.seconds + HEALING) for e in partitions]
    events = list(partitions)
    for kind, most in MOST.items():
        for _ in range(max(1, round(most * seconds / 1200.0 * nodes / 8.0))):
            least = 0.5 * longest if kind == "disk" else 2.0
            lasts = rng.uniform(least, longest)
            lasting = kind in ("pause", "suspend", "clock", "disk")
            at = _outside(rng, WARM_UP, seconds - RECOVERY, quiet, lasts if lasting else 0.0)
            node = disk_node if kind == "disk" else rng.randrange(nodes)
            shift = rng.choice(SHIFTS) if kind == "clock" else 0.0
            events.append(Event(at, kind, node, lasts if lasting else 0.0, shift))
    return sorted(events, key=lambda e: (e.at, e.kind, e.node))


def _partitions(rng: random.Random, seconds: float, longest: float) -> list[Event]:
    count = max(1, round(seconds / 300.0))
    room = (seconds - WARM_UP - RECOVERY) / count
    drawn = []
    for number in range(count):
        lasts = rng.uniform(min(10.0, longest), longest)
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
