"""How a simulated swarm is set up, and what it agrees on."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.scale.stand_ins import FAMILY
from protocol.identity import Identity
from protocol.manifest import Manifest, open_manifest, sign_manifest, swarm_id

START = 1_700_000_040.0
"""Unix time at which an epoch begins."""
EPOCH_SECONDS = 60.0
FOUNDER = Identity.from_seed(b"founder of a simulated swarm".ljust(32))


@dataclass(frozen=True, slots=True)
class Settings:
    """One simulated swarm.

    Attributes:
        nodes: that it has, or grows to.
        epochs: that are simulated.
        seed: of everything that is drawn.
        turns: that each member takes in an epoch; a real one takes
            :data:`swarm.member.TURNS_PER_EPOCH`.
        pulls: frames that each pulls in an epoch at most; a real one, 16 by default.
        groups: that each writes in an epoch.
        connections: peers that each is connected with.
        gossip_peers: of these, how many it asks in an epoch for what they heard.
    """

    nodes: int
    epochs: int = 20
    seed: int = 0
    turns: int = 1
    pulls: int = 2
    groups: int = 1
    connections: int = 32
    gossip_peers: int = 3


@dataclass(frozen=True, slots=True)
class Agreed:
    """What a swarm agrees on: its manifest, as signed, and its id."""

    manifest: Manifest
    signed: bytes
    swarm_id: bytes


def agreed(nodes: int) -> Agreed:
    """For a swarm of so many nodes."""
    manifest = Manifest(
        name=f"simulated swarm of {nodes}",
        founder=FOUNDER.author,
        created=START,
        catalogue=(FAMILY,),
        epoch_seconds=EPOCH_SECONDS,
    )
    signed = sign_manifest(manifest, FOUNDER)
    return Agreed(open_manifest(signed), signed, swarm_id(signed))
