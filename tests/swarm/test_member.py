"""Members exchange groups, alone, together, partitioned, and over bad networks."""

import asyncio
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from experiments.memory_transport import Conditions
from protocol.manifest import sign_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.collector import CollectorLimits
from swarm.journal import JournalError
from swarm.member import FAILURES_REPORTED
from tests.swarm.network_parts import (
    CREATOR,
    EPOCH_SECONDS,
    ORIGIN,
    MemorySwarm,
    Node,
    answers,
    manifest,
    running,
)


async def test_peer_buffers_published_groups_with_verified_rewards(swarm, anna, ben):
    anna.publish(3)
    await swarm.step()
    (first, *_) = pooled = ben.pool.fresh()
    assert (len(pooled), first.rewards) == (3, (1.0, 0.0))
    assert first.key.author == anna.identity.author
    assert anna.pool.fresh() == []


async def test_node_does_not_pull_uninformative_frames(swarm, anna, ben) -> None:
    anna.publish(2, texts=("odd", "odd too"))
    await swarm.step()
    assert ben.count("frames_pulled") == 0


async def test_observer_receives_groups_but_is_not_counted_as_member(swarm, anna, ben) -> None:
    observer = await swarm.join("watch", quiet=True, limits=CollectorLimits(blind=True))
    anna.publish()
    for _ in range(4):
        await swarm.step()
        await asyncio.gather(*(node.member.meet() for node in swarm.nodes))
        await swarm.clock.advance(EPOCH_SECONDS / 4)
    assert observer.authors() == {anna.identity.author}
    assert observer.count("announced") == 0
    seen = {peer.peer_id: peer for peer in observer.member.status().peers}
    assert observer.member.status().members == 2
    assert [o.groups for o in seen[anna.identity.peer_id].offers] == [1]
    for node in (anna, ben):
        assert node.member.status().members == 1
        (observed,) = (p for p in node.member.status().peers if p.policy_step is None)
        assert (observed.peer_id, observed.swarm) == (observer.identity.peer_id, None)


async def test_node_pulls_a_reannounced_frame_once(swarm, anna, ben) -> None:
    anna.publish()
    await swarm.turns(12, EPOCH_SECONDS / 4)
    assert (ben.count("frames_pulled"), anna.count("announced")) == (1, 4)


async def test_running_node_receives_groups_within_one_time_slot() -> None:
    swarm = MemorySwarm(conditions=Conditions(latency=0.05))
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    async with running(anna, ben):
        await swarm.clock.advance(EPOCH_SECONDS)
        anna.publish()
        await swarm.clock.advance(EPOCH_SECONDS)
        assert ben.authors() == {anna.identity.author}


async def test_node_pulls_a_frame_announced_between_two_dht_reads(swarm, anna, ben) -> None:
    async with running(anna, ben):
        await swarm.clock.advance(EPOCH_SECONDS / 40)
        anna.publish()
        await swarm.clock.advance(EPOCH_SECONDS / 40)
        assert ben.authors() == {anna.identity.author}
        assert ben.count("announcements_by_store") > 0


async def test_stored_announcements_stay_within_pulls_per_time_slot(swarm) -> None:
    ben = await swarm.join("ben", limits=CollectorLimits(pulls_per_epoch=3))
    others = [await swarm.join(f"node {n}") for n in range(8)]
    await ben.member.step()
    for node in others:
        node.publish()
        await node.member.step()
    await ben.member.step()
    assert ben.count("announcements_by_store") > 3, "node names decide the replicas"
    assert ben.count("frames_pulled") == 3
    await swarm.clock.advance(EPOCH_SECONDS)
    await ben.member.step()
    assert ben.count("frames_pulled") == 6


async def test_failure_between_two_turns_is_raised_by_the_next_turn(anna, ben):
    await ben.member.step()
    healthy, ben.directory.accept = ben.directory.accept, failing
    for _ in range(3):
        anna.publish()
        await anna.member.step()
    ben.directory.accept = healthy
    with pytest.raises(JournalError):
        await ben.member.step()
    await ben.member.step()
    assert ben.count("member_failures{turn=hear}") == 3
    assert ben.authors() == {anna.identity.author}


async def test_gossip_delivers_groups_when_the_dht_fails(swarm) -> None:
    anna, ben, cleo = [await swarm.join(name) for name in ("anna", "ben", "cleo")]
    for node in swarm.nodes:
        node.transport.read = AsyncMock(return_value={})  # This is an eclipsed DHT.
    anna.publish()
    await swarm.step()
    assert ben.authors() == cleo.authors() == {anna.identity.author}
    assert ben.count("announcements_by_gossip") > 0


async def test_node_continues_alone_when_all_peers_leave(swarm, anna, ben) -> None:
    ben.publish()
    await ben.member.step()
    await ben.transport.close()
    anna.publish()
    for _ in range(3):
        await anna.member.step()
        await swarm.clock.advance(EPOCH_SECONDS)
    assert anna.member.failure is None
    assert (anna.member.status().peers, anna.count("announced")) == ((), 3)


async def test_partitioned_swarm_exchanges_groups_again_after_it_heals(swarm, anna, ben) -> None:
    swarm.network.partition([anna.transport.peer_id], [ben.transport.peer_id])
    anna.publish()
    await swarm.step()
    assert ben.authors() == set()
    swarm.network.partition()
    await swarm.clock.advance(EPOCH_SECONDS)
    await swarm.step()
    assert ben.authors() == {anna.identity.author}


async def simulate(seed: int, nodes: int, loss: float, turns: int, seconds: float) -> list[Node]:
    """Run a swarm in which every node publishes in each turn."""
    swarm = MemorySwarm(seed=seed, conditions=Conditions(loss=loss))
    members = [await swarm.join(f"node {n}") for n in range(nodes)]
    for _ in range(turns):
        for node in members:
            node.publish()
        await swarm.step()
        await swarm.clock.advance(seconds)
    return members


@pytest.mark.parametrize(("seed", "pairs"), [(0, 28), (1, 28), (2, 30), (3, 30)])
async def test_groups_arrive_over_a_network_with_33_percent_loss(seed, pairs):
    nodes = await simulate(seed, nodes=6, loss=0.33, turns=8, seconds=EPOCH_SECONDS / 4)
    totals = [len(node.authors()) for node in nodes]
    assert min(totals) >= 4, "two lost pulls pause an author"
    assert sum(totals) >= pairs, "the maximum is 30"


async def test_seed_determines_a_simulated_run() -> None:
    first, again, other = [
        [node.counters.snapshot() for node in await simulate(seed, 8, 0.2, 6, EPOCH_SECONDS / 2)]
        for seed in (1, 1, 2)
    ]
    assert first == again != other


async def test_large_outbox_is_sent_in_frames_within_the_limit_without_loss() -> None:
    swarm = MemorySwarm(max_frame_bytes=4096)
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    texts = tuple("".join(chr(33 + (i * 7 + j * j) % 90) for j in range(700)) for i in (1, 2))
    anna.publish(20, texts=("x" + texts[0], texts[1]))
    await swarm.turns(12, EPOCH_SECONDS / 2)
    assert len(ben.pool.fresh()) == 20
    assert all(offer.size <= 4096 for offer in anna.outbox.offers(100))


async def test_failing_node_logs_the_same_message_and_recovers(swarm, anna, caplog):
    healthy, anna.outbox.take = anna.outbox.take, failing
    async with running(anna):
        await swarm.clock.advance(FAILURES_REPORTED / 2 * EPOCH_SECONDS / 4)
        assert anna.member.failure is None
        await swarm.clock.advance(FAILURES_REPORTED * EPOCH_SECONDS / 4)
        assert isinstance(anna.member.failure, JournalError)
        anna.outbox.take = healthy
        await swarm.clock.advance(EPOCH_SECONDS)
        assert anna.member.failure is None
    logged = [record for record in caplog.records if record.name == "swarm.member"]
    assert len(logged) >= 4
    (message,) = {record.getMessage() for record in logged}
    assert "journal journal.db: disk full; make room" in message
    assert not any(record.exc_info for record in logged)


def failing(given: object) -> list:
    raise JournalError("journal.db", "disk full", "make room")


async def test_node_without_shared_groups_announces_its_policy_step(swarm, anna, ben):
    ben.outbox.put([], replace(ORIGIN, policy_step=9))
    await ben.member.step()
    await anna.member.step()
    (peer,) = anna.member.status().peers
    assert (peer.policy_step, peer.groups) == (9, 0)


async def test_status_lists_peers_with_their_last_announcement_and_its_time(swarm, anna, ben):
    ben.publish(2)
    await ben.member.step()
    await anna.member.step()
    announced = swarm.clock.time()
    await swarm.clock.advance(1.0)
    (peer,) = anna.member.status().peers
    assert (peer.peer_id, peer.author) == (ben.transport.peer_id, ben.identity.author)
    assert (peer.connected, peer.policy_step, peer.groups) == (True, 3, 2)
    assert peer.heard == announced + 1.0
    await ben.transport.close()
    (peer,) = anna.member.status().peers
    assert (peer.connected, peer.heard) == (False, announced)


ELSEWHERE = sign_manifest(manifest(name="elsewhere"), CREATOR)


def serves(node, signed: bytes) -> list[str]:
    """Let a node serve another manifest; return the list of its requesters."""
    return answers(node, MANIFEST_STREAM, lambda: signed)


async def test_connected_node_in_another_swarm_is_not_a_member(anna, ben, mallory) -> None:
    serves(mallory, ELSEWHERE)
    assert (anna.member.status().members, anna.member.status().foreign_peers) == (0, 0)
    await anna.member.meet()
    status = anna.member.status()
    assert (status.members, status.foreign_peers) == (1, 1)
    assert {peer.peer_id: peer.swarm for peer in status.peers} == {
        ben.transport.peer_id: status.swarm_id,
        mallory.transport.peer_id: swarm_id(ELSEWHERE),
    }
    assert all(peer.connected for peer in status.peers)


async def test_node_asks_for_a_manifest_once_and_backs_off_on_failure(swarm, anna, ben, mallory):
    once, often = serves(ben, ELSEWHERE), serves(mallory, b"no manifest")
    for _ in range(8):
        await anna.member.meet()
        await swarm.clock.advance(EPOCH_SECONDS)
    assert len(once) == 1
    assert 2 <= len(often) <= 4
    assert (anna.member.status().members, anna.member.status().foreign_peers) == (0, 1)


async def test_announcing_peer_is_not_asked_for_its_manifest(anna, ben) -> None:
    asked = serves(ben, ELSEWHERE)
    ben.publish()
    await ben.member.step()
    await anna.member.step()
    await anna.member.meet()
    assert asked == []
    assert (anna.member.status().members, anna.member.status().foreign_peers) == (1, 0)


async def test_node_forgets_a_manifest_after_disconnect(swarm, anna, ben) -> None:
    asked = serves(ben, ELSEWHERE)
    await anna.member.meet()
    swarm.network.partition([anna.transport.peer_id], [ben.transport.peer_id])
    await anna.member.meet()
    assert anna.member.status().foreign_peers == 0
    swarm.network.partition()
    await anna.member.meet()
    assert len(asked) == 2
