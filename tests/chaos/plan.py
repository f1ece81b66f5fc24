"""The plan of events and their times: a pure function of the seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP, RECOVERY = 30.0, 30.0
"""Seconds without events at the start, and without new events at the end."""
HEALING = 15.0
"""Quiet seconds after a partition, so that its healing can be measured."""
SETTLING = 25.0
"""Quiet seconds before the end of a partition.
A node takes this long to start, and a starting node cannot show a heal."""
LONGEST_PAUSE = 30.0
SHIFTS = (-120.0, -20.0, -2.0, 2.0, 20.0, 120.0)
"""Clock shifts to draw from, in seconds: within and beyond what peers tolerate."""
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
"""Events per kind, except partitions, on eight nodes together in 20 minutes.
Starting nodes are killed less often, because they use less of a small machine."""


@dataclass(frozen=True, slots=True)
class Event:
    """One fault.

    Attributes:
        at: seconds after the start of the run.
        kind: ``kill``, ``young`` (killed while it starts), ``pause``, ``suspend`` (its daemon is
            stopped too), ``daemon``, ``network`` (the process of that name), ``verifier``,
            ``clock``, ``disk`` or ``partition``.
        node: index of the node, or of the first candidate for the fault; -1 for a fault that
            affects all nodes.
        seconds: duration; 0 for a fault without one.
        shift: seconds by which the clock moves.
        tries: how often no suitable node was found.
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
    """Return all events in order of time; only the disk of ``disk_node`` can fill.

    Their number is proportional to time and nodes. Every kind occurs at least once, even in a short
    run.
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
    """Draw a start in [first, last] so that ``lasts`` seconds meet no quiet interval."""
    at = first
    for _ in range(1000):
        at = rng.uniform(first, last)
        if all(at + lasts < begin or at > end for begin, end in quiet):
            break
    return at
