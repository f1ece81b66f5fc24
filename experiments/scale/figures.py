"""What a simulated swarm spent and what came of it, epoch by epoch and in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from experiments.scale.scenario import SCENARIOS
from experiments.scale.settings import Settings
from experiments.scale.tally import Kind

WARM_UP = 2
"""Epochs until there are records of two in the hash table; costs are means over later ones."""
PATIENCE = 3.0
"""Epochs after which whoever has no outside group counts as having found none."""


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One epoch; rates are means over the nodes that took part.

    Attributes:
        epoch: from 0.
        nodes: that took part.
        rpcs: requests sent by a node, by :class:`experiments.scale.tally.Kind`.
        bytes: of these requests and their answers, by kind.
        key_records: under the key that holds most.
        key_reads: of the key that is read most.
        busiest: bytes asked for and served by the node with most of them, by the mean.
        found: part of the nodes whose pool got an outside group.
        crossed: part of the nodes that used a group from the other half of a cut.
        authors: in a pool before it is learned from.
        depth: at which nodes take announcements to stand.
        cpu_ms: of this process, for each node.
    """

    epoch: int
    nodes: int
    rpcs: tuple[float, ...]
    bytes: tuple[float, ...]
    key_records: int
    key_reads: int
    busiest: float
    found: float
    crossed: float
    authors: float
    depth: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Waits:
    """From joining to the first outside group, in epochs.

    Attributes:
        median, worst: of those who got one; None where nobody did.
        never: nodes that had three epochs' time and got none.
    """

    median: float | None
    worst: float | None
    never: int

    @classmethod
    def of(cls, waits: Sequence[float], never: int) -> Waits:
        """Those of all nodes that ever took part."""
        return cls(median(waits) if waits else None, max(waits, default=None), never)


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole run.

    Attributes:
        scenario: its name.
        epochs: one by one.
        waits: until the first outside group.
        taken: part of the published groups that another node's learner used, those of the last
            four epochs, which are still on offer, left out; None where that leaves none.
    """

    scenario: str
    settings: Settings
    epochs: tuple[EpochFigures, ...]
    waits: Waits
    taken: float | None

    @property
    def counted(self) -> tuple[EpochFigures, ...]:
        """The epochs that means are over: all but the first two, where there are more."""
        return self.epochs[WARM_UP:] or self.epochs

    def rpcs(self, kind: Kind) -> float:
        """Requests of a node in an epoch."""
        return fmean(epoch.rpcs[kind] for epoch in self.counted)

    def bytes(self, kind: Kind) -> float:
        """Bytes of a node's requests and their answers in an epoch."""
        return fmean(epoch.bytes[kind] for epoch in self.counted)

    @property
    def key_records(self) -> int:
        """Records under a key, at most."""
        return max(epoch.key_records for epoch in self.counted)

    @property
    def key_reads(self) -> int:
        """Reads of a key in an epoch, at most."""
        return max(epoch.key_reads for epoch in self.counted)

    @property
    def busiest(self) -> float:
        """Bytes of the busiest node in an epoch, by that epoch's mean, at most."""
        return max(epoch.busiest for epoch in self.counted)

    @property
    def authors(self) -> float:
        """In a pool, mean over nodes and epochs."""
        return fmean(epoch.authors for epoch in self.counted)

    @property
    def depth(self) -> float:
        """At which nodes took announcements to stand in the last epoch."""
        return self.epochs[-1].depth

    @property
    def mended(self) -> int | None:
        """Epochs from the heal of a cut until half of the nodes used groups of the other half.

        1 is the first epoch behind it; None where there was no cut, or they did not.
        """
        parted = SCENARIOS[self.scenario].parted(self.settings)
        after = self.epochs[parted.stop :] if parted else ()
        return next((n for n, epoch in enumerate(after, 1) if epoch.crossed >= 0.5), None)

    @property
    def least_found(self) -> float:
        """Part of the nodes that got outside groups, in the epoch in which fewest did."""
        return min(epoch.found for epoch in self.counted)

    @property
    def cpu_ms(self) -> float:
        """Of the simulation, for a node and epoch."""
        nodes = sum(epoch.nodes for epoch in self.counted)
        return sum(epoch.cpu_ms * epoch.nodes for epoch in self.counted) / nodes
