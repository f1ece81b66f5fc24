"""Whether what a mistreated swarm holds stays as it was: memory, descriptors, what lies in /tmp."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.checks import Result
from tests.chaos.evidence import Evidence
from tests.chaos.trend import thirds

SETTLED_SECONDS = 20.0
"""At work, after which a node has started all that it starts."""

LARGEST_GROWTH = {
    "memory": (1.25, 0.0),
    "fds": (1.1, 8.0),
    "sockets": (1.1, 8.0),
    "threads": (1.1, 4.0),
}
"""Factor and summand by which the last third of a run may exceed the first, of a node's median."""

MOST_LOST_SOCKETS = 40
"""Left by killed daemons: each next start removes those that are a minute old."""

MOST_TEMPORARY = 64
"""Other entries of /tmp, over all processes of a run."""


def flat(evidence: Evidence) -> Iterable[Result]:
    """One result for each thing that must not grow."""
    for figure, (factor, summand) in LARGEST_GROWTH.items():
        rows = evidence.rows(f"SELECT at, {figure} FROM samples WHERE age>?", (SETTLED_SECONDS,))
        result = Result(f"{figure} flat")
        if rows:
            first, last = thirds(*zip(*rows, strict=True))
            grown = f"{figure} of a node: {first:.0f} at first, {last:.0f} at last"
            result.expect(last <= factor * first + summand, lambda g=grown: g)
            result.checked = len(rows)
        else:
            result.expect(False, lambda f=figure: f"{f}: nothing was sampled")
        yield result
    sockets, lost, temporary = (
        Result("unix sockets flat"),
        Result("no process is lost"),
        Result("temporary files flat"),
    )
    for _, stray, total, daemons, other in evidence.rows("SELECT * FROM machine"):
        left = total - 2 * daemons
        sockets.expect(left <= MOST_LOST_SOCKETS, lambda n=left: f"{n} sockets of no daemon")
        lost.expect(stray == 0, lambda n=stray: f"{n} processes belong to no node")
        temporary.expect(other <= MOST_TEMPORARY, lambda n=other: f"{n} entries in /tmp")
    yield from (sockets, lost, temporary)
