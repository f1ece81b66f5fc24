"""Whether groups come over again once a cut network is whole."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.chaos.autopsy import admitted_from, beside
from tests.chaos.crew import ChaosNode
from tests.chaos.evidence import Evidence
from tests.chaos.plan import HEALING

LOOK_SECONDS = 0.5
LONGEST_SECONDS = 2 * HEALING
"""With somebody at work on both sides; after it a node counts as not healed."""


class Healing:
    """Counts for each node what it admits from the other side, before, during and after a cut.

    How soon after a heal the first group comes over depends on the machine as well: nobody has
    something new at every moment. So the longest that each node waited for groups from the other
    side while the network was whole goes on record beside what it waited after a heal. A wait is
    timed only while the node and somebody on the other side can work, and not until the node had
    its first group from there: that one comes late, as the node has just started. So who started
    while the network was cut is not watched: what it waits for is a start, and no heal.

    Args:
        authors: public keys of the nodes, in their order.
        able: whether a node is at work and nothing is done to it.
        say: prints a line.
    """

    def __init__(
        self,
        nodes: Sequence[ChaosNode],
        authors: Sequence[bytes],
        evidence: Evidence,
        able: Callable[[ChaosNode], bool],
        say: Callable[[str], None],
    ) -> None:
        self._nodes = nodes
        self._beyond = {
            node.name: [a for n, a in zip(nodes, authors, strict=True) if n.side != node.side]
            for node in nodes
        }
        self._evidence = evidence
        self._able = able
        self._say = say
        self._waits: dict[str, tuple[int, float | None]] = {}
        self._usual: dict[str, float] = {}
        self._watched: set[str] = set()
        self._cut = False
        self._looked = time.monotonic()

    @property
    def known(self) -> frozenset[str]:
        """Nodes of which it is known how long they wait for groups from the other side."""
        return frozenset(self._usual)

    @property
    def met(self) -> bool:
        """Whether somebody on either side had groups from the other since it started."""
        return len({node.side for node in self._nodes if self._waiting(node.name)}) == 2

    @property
    def watching(self) -> bool:
        """Whether a heal is being measured now."""
        return bool(self._watched)

    @property
    def over(self) -> bool:
        """Whether the network is whole and no heal is being measured."""
        return not self._cut and not self._watched

    def cut(self) -> None:
        """The network is about to be cut."""
        self._cut = True

    def healed(self) -> int:
        """The network is whole again; the number of nodes that are watched."""
        self._forget_hindered()
        known = [node for node in self._nodes if node.name in self._usual]
        judged = [node for node in known if self.met and self._waiting(node.name)]
        counts = {node.name: self._count(node) for node in judged}
        self._waits = {name: (count, 0.0) for name, count in counts.items() if count is not None}
        self._watched, self._cut = set(self._waits), False
        self._looked = time.monotonic()
        return len(self._watched)

    def look(self) -> None:
        """Go on counting; every few seconds is enough, more often is more exact."""
        self._forget_hindered()
        passed = time.monotonic() - self._looked
        if self._cut or passed < LOOK_SECONDS:
            return
        self._looked += passed
        able = [node for node in self._nodes if self._able(node)]
        if len({node.side for node in able}) == 2:
            for node in able:
                self._wait(node, passed)

    def _forget_hindered(self) -> None:
        for node in self._nodes:
            if not self._able(node):
                self._waits.pop(node.name, None)
                self._watched.discard(node.name)

    def _waiting(self, name: str) -> bool:
        return self._waits.get(name, (0, None))[1] is not None

    def _wait(self, node: ChaosNode, passed: float) -> None:
        count = self._count(node)
        if count is None:
            return
        before, waited = self._waits.get(node.name, (count, None))
        came, waited = count > before, None if waited is None else waited + passed
        self._waits[node.name] = (count, 0.0 if came else waited)
        if waited is None:
            return
        if node.name in self._watched:
            if came or waited > LONGEST_SECONDS:
                self._settle(node.name, waited if came else None)
        elif came:
            self._usual[node.name] = max(waited, self._usual.get(node.name, 0.0))

    def _settle(self, name: str, took: float | None) -> None:
        self._watched.discard(name)
        usual = self._usual[name]
        self._evidence.add("heals", (time.time(), name, took, usual))
        told = "nothing came" if took is None else f"groups came after {took:.1f} s"
        self._say(f"{name}: {told}, after at most {usual:.1f} s before")

    def _count(self, node: ChaosNode) -> int | None:
        with suppress(sqlite3.Error), beside(node.run_folder) as journal:
            return admitted_from(journal, self._beyond[node.name])
        return None
