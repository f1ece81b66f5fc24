"""Settings and scenarios of a simulated swarm, and its manifest."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, open_manifest, sign_manifest, swarm_id

START = 1_700_000_040.0  # unix time of the start of a time slot
EPOCH_SECONDS = 60.0
FAMILY = EnvSpec("parity", "plugin", "1", ("{}",), "{question}", "text")
CREATOR = Identity.from_seed(b"founder of a simulated swarm".ljust(32))


@dataclass(frozen=True, slots=True)
class Settings:
    """One simulated swarm."""

    nodes: int  # number of nodes, or the final number
    epochs: int = 20  # number of time slots
    seed: int = 0  # random seed
    turns: int = 1  # turns per member and time slot; a real member takes four
    pulls: int = 2  # maximum frames that a member pulls per time slot; real default: 16
    groups: int = 1  # groups per member and time slot
    connections: int = 32  # connections per member
    gossip_peers: int = 3  # peers per time slot that a member asks for gossip


@dataclass(frozen=True, slots=True)
class SwarmManifest:
    """Manifest of a swarm, also signed, and the id of the swarm."""

    manifest: Manifest
    signed: bytes
    swarm_id: bytes


def swarm_manifest(nodes: int) -> SwarmManifest:
    manifest = Manifest(
        name=f"simulated swarm of {nodes}",
        founder=CREATOR.author,
        created=START,
        catalogue=(FAMILY,),
        epoch_seconds=EPOCH_SECONDS,
    )
    signed = sign_manifest(manifest, CREATOR)
    return SwarmManifest(open_manifest(signed), signed, swarm_id(signed))


INITIAL_NODES = 10  # initial nodes of a growing swarm


@dataclass(frozen=True, slots=True)
class Scenario:
    """Events in a simulated swarm."""

    name: str  # name on the command line
    about: str  # description for people
    churn: float = 0.0  # fraction of the nodes that is replaced per hour
    loss: float = 0.0  # probability that a request, or a record to or from one replica, is lost
    cut: bool = False  # whether the network is split in two for the middle third of the time slots
    grows: bool = False  # whether it grows from :data:`INITIAL_NODES` nodes by a constant factor

    def size(self, settings: Settings, epoch: int) -> int:
        """Return the number of nodes in a time slot, counted from 0."""
        if not self.grows or settings.nodes <= INITIAL_NODES:
            return settings.nodes
        part = min(1.0, epoch / max(1, settings.epochs - 1))
        factor: float = (settings.nodes / INITIAL_NODES) ** part
        return round(INITIAL_NODES * factor)

    def leaving(self, settings: Settings, epoch: int) -> int:
        """Return the number of nodes that leave at the start of a time slot; 0 at the first."""
        each = self.churn * EPOCH_SECONDS / 3600.0 * settings.nodes
        return int(each * epoch) - int(each * max(0, epoch - 1))

    def parted(self, settings: Settings) -> range:
        third = settings.epochs // 3
        return range(third, 2 * third) if self.cut else range(0)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("steady", "all nodes stay"),
        Scenario("churn", "30 % of the nodes leave per hour, and as many join", churn=0.3),
        Scenario("partition", "two halves for the middle third of the time slots", cut=True),
        Scenario("loss", "5 % of all messages are lost", loss=0.05),
        Scenario("growth", "from 10 nodes by a constant factor per time slot", grows=True),
    )
}
