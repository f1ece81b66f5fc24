"""What befalls a simulated swarm."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.scale.settings import EPOCH_SECONDS, Settings

FOUNDERS = 10
"""Nodes that a growing swarm begins with."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One course of events.

    Attributes:
        name: as the command line has it.
        about: what happens, for people.
        churn: part of the nodes that leaves in an hour; as many others come.
        loss: probability that a request, or a record to or from one replica, is lost.
        cut: whether the network is in two halves for the middle third of all epochs.
        grows: whether it begins with :data:`FOUNDERS` nodes and grows by a constant factor.
    """

    name: str
    about: str
    churn: float = 0.0
    loss: float = 0.0
    cut: bool = False
    grows: bool = False

    def size(self, settings: Settings, epoch: int) -> int:
        """Nodes that take part in an epoch, the first being 0."""
        if not self.grows or settings.nodes <= FOUNDERS:
            return settings.nodes
        part = min(1.0, epoch / max(1, settings.epochs - 1))
        factor: float = (settings.nodes / FOUNDERS) ** part
        return round(FOUNDERS * factor)

    def leaving(self, settings: Settings, epoch: int) -> int:
        """Nodes that leave as an epoch begins; nobody does at the first."""
        each = self.churn * EPOCH_SECONDS / 3600.0 * settings.nodes
        return int(each * epoch) - int(each * max(0, epoch - 1))

    def parted(self, settings: Settings) -> range:
        """Epochs in which the network is in two halves."""
        third = settings.epochs // 3
        return range(third, 2 * third) if self.cut else range(0)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("steady", "everybody stays"),
        Scenario("churn", "30 % of the nodes leave in an hour, and as many come", churn=0.3),
        Scenario("partition", "two halves for the middle third of the epochs", cut=True),
        Scenario("loss", "5 % of all messages are lost", loss=0.05),
        Scenario("growth", "from 10 nodes by a constant factor an epoch", grows=True),
    )
}
