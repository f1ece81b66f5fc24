"""Reports of a swarm as a member sees it, without a swarm."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from experiments.virtual_clock import VirtualClock
from protocol.announcement import Offer
from protocol.identity import peer_id_of
from swarm.census import Census, CensusState
from swarm.groups import Candidate, GroupKey
from swarm.member import MemberStatus, PeerInfo
from tests.swarm.network_parts import identity

SWARM = b"\x05" * 32


def key(name: str) -> bytes:
    return identity(name).author


def offer(number: int, groups: int = 2) -> Offer:
    return Offer(sha256(number.to_bytes(8, "big")).digest(), 100, groups, bytes(8), groups)


def peer(name: str, offers: Sequence[Offer] = (), **told: Any) -> PeerInfo:
    fields = {"connected": True, "policy_step": 3, "heard": 0.0, "swarm": SWARM, "link": "direct"}
    fields |= {"groups": sum(each.groups for each in offers), "offers": tuple(offers), **told}
    return PeerInfo(peer_id_of(key(name)), key(name), **fields)


def group(name: str, number: int, rewards: Sequence[float] = (1.0, 0.0), **told: Any) -> Candidate:
    fields = {"env": "sums", "level": 0, "policy_step": 3, "received": 0.0}
    return Candidate(GroupKey(key(name), 7, number), rewards=tuple(rewards), **(fields | told))


class Watched:
    def __init__(self, state: CensusState | None = None, patience: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.state = state or CensusState(SWARM.hex(), self.clock.time())
        self.census = Census(self.state, self.clock, patience)

    def wait(self, seconds: float) -> None:
        asyncio.run(self.clock.advance(seconds))

    def look(self, *peers: PeerInfo, arrived=(), refused=None, estimated=None) -> None:
        status = MemberStatus("12D3me", SWARM, (), 1, peers, 0, 0, estimated=estimated)
        self.census.look(status, arrived, refused)
