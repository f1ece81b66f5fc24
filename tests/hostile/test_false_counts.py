"""Keys by the hundred make a swarm look larger: what that costs, and that it passes."""

from __future__ import annotations

import asyncio

from protocol.announcement import (
    Announcement,
    depth_for,
    depth_of,
    record_key,
    shard_of,
    sign_announcement,
)
from protocol.identity import Identity
from swarm.transport.memory import MemoryTransport
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, Node

CROWD = 300
HONEST = 6
DEPTH = depth_for(CROWD + HONEST)
MOST_READS = 12
"""Keys a node reads in an epoch, two in each of four looks and four of the epoch before."""


def minted(count: int) -> list[Identity]:
    return [Identity.from_seed(b"sybil %026d" % n) for n in range(count)]


async def announce(sybil: MemoryTransport, node: Node, keys: list[Identity]) -> None:
    """What so many authors would say who know how many they are."""
    directory = node.directory
    epoch, expiry = directory.epoch, (directory.epoch + 2) * EPOCH_SECONDS
    for number, key in enumerate(keys):
        depth = depth_of(key.author, epoch, DEPTH)
        shard = shard_of(key.author, epoch, depth)
        made = Announcement(epoch, depth, shard, number + 1, 1, expiry, 0, ())
        where = record_key(directory.swarm_id, epoch, depth, shard)
        record = sign_announcement(made, key, directory.swarm_id)
        await sybil.store(where, key.author, record, expiry)


def counted(node: Node) -> list[str]:
    """Keys that the node reads from now on."""
    read, keys = node.transport.read, []

    async def noted(key: str) -> dict[bytes, bytes]:
        keys.append(key)
        return await read(key)

    node.transport.read = noted
    return keys


async def epoch_of(swarm: MemorySwarm) -> None:
    """Four turns of every node, in which each shares a group."""
    for node in swarm.nodes:
        node.publish()
    for _ in range(4):
        await swarm.step()
        await swarm.clock.advance(EPOCH_SECONDS / 4)


def test_sybil_makes_the_swarm_look_larger_and_experience_goes_on_by_gossip() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        nodes = [await swarm.join(f"honest {n}") for n in range(HONEST)]
        sybil, crowd = await swarm.stranger("sybil"), minted(CROWD)
        await epoch_of(swarm)
        keys = {node.identity.author: counted(node) for node in nodes}
        deepest = 0.0
        for _ in range(8):
            await announce(sybil, nodes[0], crowd)
            pooled = [node.count("groups_pooled") for node in nodes]
            for read in keys.values():
                read.clear()
            await epoch_of(swarm)
            depths = [node.directory.shards.density.depth for node in nodes]
            assert sorted(map(len, keys.values()))[HONEST // 2] <= MOST_READS
            now = [node.count("groups_pooled") for node in nodes]
            assert all(b > a for a, b in zip(pooled, now, strict=True)), "each finds others' groups"
            deepest = max(deepest, *depths)
        assert DEPTH - 1.5 < deepest < DEPTH + 1.5, "she counts as many authors as she has keys"
        for _ in range(10):
            await epoch_of(swarm)
        assert [node.directory.shards.density.depth for node in nodes] == [0.0] * HONEST

    asyncio.run(scenario())


def test_a_newcomer_to_a_crowd_finds_the_honest_in_its_first_epoch() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        nodes = [await swarm.join(f"honest {n}") for n in range(HONEST)]
        sybil, crowd = await swarm.stranger("sybil"), minted(CROWD)
        for _ in range(6):
            await announce(sybil, nodes[0], crowd)
            await epoch_of(swarm)
        newcomer = await swarm.join("newcomer")
        await announce(sybil, nodes[0], crowd)
        await epoch_of(swarm)
        assert newcomer.authors() & {node.identity.author for node in nodes}

    asyncio.run(scenario())
