"""Who of those connected is a peer, and who only passes by on the same wires."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from protocol.manifest import sign_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.transport.transport import HandlerLimits
from tests.swarm.network_parts import EPOCH_SECONDS, FOUNDER, MemorySwarm, Node, manifest

ELSEWHERE = sign_manifest(manifest(name="elsewhere"), FOUNDER)


def tells(node: Node, signed: bytes) -> list[str]:
    """Let a node hand out another manifest; who asked for it."""
    asked: list[str] = []

    async def answer(asker: str, request: bytes) -> bytes:
        asked.append(asker)
        return signed

    node.transport.handle(MANIFEST_STREAM, answer, HandlerLimits(64, 8, 8))
    return asked


def run(scenario: Callable[[MemorySwarm], Awaitable[None]]) -> None:
    async def within() -> None:
        await scenario(MemorySwarm())

    asyncio.run(within())


async def test_one_of_another_swarm_is_connected_and_is_no_peer(swarm: MemorySwarm) -> None:
    anna, ben, mallory = [await swarm.join(name) for name in ("anna", "ben", "mallory")]
    tells(mallory, ELSEWHERE)
    assert (anna.member.status().members, anna.member.status().strangers) == (0, 0)
    await anna.member.meet()
    status = anna.member.status()
    assert (status.members, status.strangers) == (1, 1)
    assert {peer.peer_id: peer.swarm for peer in status.peers} == {
        ben.transport.peer_id: status.swarm_id,
        mallory.transport.peer_id: swarm_id(ELSEWHERE),
    }
    assert all(peer.connected for peer in status.peers)


async def test_who_announces_here_is_a_peer_and_is_not_asked(swarm: MemorySwarm) -> None:
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    asked = tells(ben, ELSEWHERE)
    ben.publish()
    await ben.member.step()
    await anna.member.step()
    await anna.member.meet()
    assert asked == []
    assert (anna.member.status().members, anna.member.status().strangers) == (1, 0)


async def test_each_is_asked_once_and_who_does_not_tell_ever_more_rarely(swarm: MemorySwarm):
    anna, ben, mallory = [await swarm.join(name) for name in ("anna", "ben", "mallory")]
    once, often = tells(ben, ELSEWHERE), tells(mallory, b"no manifest")
    for _ in range(8):
        await anna.member.meet()
        await swarm.clock.advance(EPOCH_SECONDS)
    assert len(once) == 1
    assert 2 <= len(often) <= 4
    assert (anna.member.status().members, anna.member.status().strangers) == (0, 1)


async def test_what_was_told_is_forgotten_with_the_connection(swarm: MemorySwarm) -> None:
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    asked = tells(ben, ELSEWHERE)
    await anna.member.meet()
    swarm.network.partition([anna.transport.peer_id], [ben.transport.peer_id])
    await anna.member.meet()
    assert anna.member.status().strangers == 0
    swarm.network.partition()
    await anna.member.meet()
    assert len(asked) == 2


async def test_a_peer_was_heard_now_while_connected_and_else_when_it_announced_last(swarm):
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    await ben.member.step()
    await anna.member.step()
    announced = swarm.clock.time()
    await swarm.clock.advance(1.0)
    (heard,) = anna.member.status().peers
    assert (heard.connected, heard.heard) == (True, announced + 1.0)
    await ben.transport.close()
    (heard,) = anna.member.status().peers
    assert (heard.connected, heard.heard) == (False, announced)
