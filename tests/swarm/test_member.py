"""Members of a swarm exchange experience, alone, together, parted and under bad conditions."""

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
    answers,
    manifest,
    running,
)


async def test_a_published_group_is_pooled_with_the_same_text_and_checked_rewards(swarm, anna, ben):
    anna.publish(3)
    await swarm.step()
    (first, *_) = found = ben.pool.fresh()
    assert (len(found), first.rewards) == (3, (1.0, 0.0))
    assert first.key.author == anna.identity.author
    assert anna.pool.fresh() == []


async def test_frames_that_can_teach_nothing_are_left_where_they_are(swarm, anna, ben) -> None:
    anna.publish(2, texts=("odd", "odd too"))
    await swarm.step()
    assert ben.count("frames_pulled") == 0


async def test_who_looks_on_learns_all_and_is_no_member_in_anybodys_eyes(swarm, anna, ben) -> None:
    watch = await swarm.join("watch", quiet=True, limits=CollectorLimits(blind=True))
    anna.publish()
    for _ in range(4):
        await swarm.step()
        await asyncio.gather(*(node.member.meet() for node in swarm.nodes))
        await swarm.clock.advance(EPOCH_SECONDS / 4)
    assert watch.authors() == {anna.identity.author}
    assert watch.count("announced") == 0
    seen = {peer.peer_id: peer for peer in watch.member.status().peers}
    assert watch.member.status().members == 2
    assert [o.groups for o in seen[anna.identity.peer_id].offers] == [1]
    for node in (anna, ben):
        assert node.member.status().members == 1
        (watching,) = (p for p in node.member.status().peers if p.policy_step is None)
        assert (watching.peer_id, watching.swarm) == (watch.identity.peer_id, None)


async def test_a_frame_is_pulled_once_however_often_it_is_announced(swarm, anna, ben) -> None:
    anna.publish()
    for _ in range(12):
        await swarm.step()
        await swarm.clock.advance(EPOCH_SECONDS / 4)
    assert (ben.count("frames_pulled"), anna.count("announced")) == (1, 4)


async def test_a_member_running_by_itself_pools_what_is_published_within_the_epoch() -> None:
    swarm = MemorySwarm(conditions=Conditions(latency=0.05))
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    async with running(anna, ben):
        await swarm.clock.advance(EPOCH_SECONDS)
        anna.publish()
        await swarm.clock.advance(EPOCH_SECONDS)
        assert ben.authors() == {anna.identity.author}


async def test_a_member_pulls_what_is_announced_between_two_of_its_looks(swarm, anna, ben) -> None:
    async with running(anna, ben):
        await swarm.clock.advance(EPOCH_SECONDS / 40)
        anna.publish()
        await swarm.clock.advance(EPOCH_SECONDS / 40)
        assert ben.authors() == {anna.identity.author}
        assert ben.count("announcements_by_store") > 0


async def test_what_is_heard_between_two_looks_takes_no_more_pulls_than_an_epoch_has(swarm) -> None:
    ben = await swarm.join("ben", limits=CollectorLimits(pulls_per_epoch=3))
    others = [await swarm.join(f"node {n}") for n in range(8)]
    await ben.member.step()
    for node in others:
        node.publish()
        await node.member.step()
    await ben.member.step()
    assert ben.count("announcements_by_store") > 3, "replicas are drawn by their names"
    assert ben.count("frames_pulled") == 3
    await swarm.clock.advance(EPOCH_SECONDS)
    await ben.member.step()
    assert ben.count("frames_pulled") == 6


async def test_a_failure_over_what_is_heard_between_two_looks_is_told_by_the_next(anna, ben):
    await ben.member.step()
    healthy, ben.directory.accept = ben.directory.accept, broken
    for _ in range(3):
        anna.publish()
        await anna.member.step()
    ben.directory.accept = healthy
    with pytest.raises(JournalError):
        await ben.member.step()
    await ben.member.step()
    assert ben.count("member_failures{turn=hear}") == 3
    assert ben.authors() == {anna.identity.author}


async def test_gossip_brings_what_the_hash_table_does_not(swarm) -> None:
    anna, ben, cleo = [await swarm.join(name) for name in ("anna", "ben", "cleo")]
    for node in swarm.nodes:
        node.transport.read = AsyncMock(return_value={})  # an eclipsed hash table
    anna.publish()
    await swarm.step()
    assert ben.authors() == cleo.authors() == {anna.identity.author}
    assert ben.count("announcements_by_gossip") > 0


async def test_a_member_whose_peers_all_vanish_goes_on_alone(swarm, anna, ben) -> None:
    ben.publish()
    await ben.member.step()
    await ben.transport.close()
    anna.publish()
    for _ in range(3):
        await anna.member.step()
        await swarm.clock.advance(EPOCH_SECONDS)
    assert anna.member.failure is None
    assert (anna.member.status().peers, anna.count("announced")) == ((), 3)


async def test_two_halves_of_a_parted_swarm_exchange_again_once_it_heals(swarm, anna, ben) -> None:
    swarm.network.partition([anna.transport.peer_id], [ben.transport.peer_id])
    anna.publish()
    await swarm.step()
    assert ben.authors() == set()
    swarm.network.partition()
    await swarm.clock.advance(EPOCH_SECONDS)
    await swarm.step()
    assert ben.authors() == {anna.identity.author}


@pytest.mark.parametrize(("seed", "pairs"), [(0, 28), (1, 28), (2, 30), (3, 30)])
async def test_experience_arrives_over_a_network_that_loses_a_third_of_its_messages(seed, pairs):
    swarm = MemorySwarm(seed=seed, conditions=Conditions(loss=0.33))
    nodes = [await swarm.join(f"node {n}") for n in range(6)]
    for _ in range(8):
        for node in nodes:
            node.publish()
        await swarm.step()
        await swarm.clock.advance(EPOCH_SECONDS / 4)
    met = [len(node.authors()) for node in nodes]
    assert min(met) >= 4, "an author whose pulls were lost twice is left alone for a while"
    assert sum(met) >= pairs, "of 30"


async def seeded(seed: int) -> list[dict[str, float]]:
    swarm = MemorySwarm(seed=seed, conditions=Conditions(loss=0.2))
    nodes = [await swarm.join(f"node {n}") for n in range(8)]
    for _ in range(6):
        for node in nodes:
            node.publish()
        await swarm.step()
        await swarm.clock.advance(EPOCH_SECONDS / 2)
    return [node.counters.snapshot() for node in nodes]


async def test_a_run_is_a_function_of_its_seed() -> None:
    assert await seeded(1) == await seeded(1) != await seeded(2)


async def test_a_large_outbox_leaves_in_frames_within_the_limit_and_none_is_lost() -> None:
    swarm = MemorySwarm(max_frame_bytes=4096)
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    texts = tuple("".join(chr(33 + (i * 7 + j * j) % 90) for j in range(700)) for i in (1, 2))
    anna.publish(20, texts=("x" + texts[0], texts[1]))
    for _ in range(12):
        await swarm.step()
        await swarm.clock.advance(EPOCH_SECONDS / 2)
    assert len(ben.pool.fresh()) == 20
    assert all(offer.size <= 4096 for offer in anna.outbox.offers(100))


async def test_a_failing_member_reports_it_in_the_same_words_and_recovers(swarm, anna, caplog):
    healthy, anna.outbox.take = anna.outbox.take, broken
    async with running(anna):
        await swarm.clock.advance(FAILURES_REPORTED / 2 * EPOCH_SECONDS / 4)
        assert anna.member.failure is None
        await swarm.clock.advance(FAILURES_REPORTED * EPOCH_SECONDS / 4)
        assert isinstance(anna.member.failure, JournalError)
        anna.outbox.take = healthy
        await swarm.clock.advance(EPOCH_SECONDS)
        assert anna.member.failure is None
    told = [record for record in caplog.records if record.name == "swarm.member"]
    assert len(told) >= 4
    (words,) = {record.getMessage() for record in told}
    assert "journal journal.db: disk full; make room" in words
    assert not any(record.exc_info for record in told)


def broken(given: object) -> list:
    raise JournalError("journal.db", "disk full", "make room")


async def test_a_node_whose_groups_are_not_worth_sharing_announces_its_step(swarm, anna, ben):
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


def tells(node, signed: bytes) -> list[str]:
    """Let a node hand out another manifest; who asked for it."""
    return answers(node, MANIFEST_STREAM, lambda: signed)


async def test_one_of_another_swarm_is_connected_and_is_no_peer(anna, ben, mallory) -> None:
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


async def test_each_is_asked_once_and_who_does_not_tell_ever_more_rarely(swarm, anna, ben, mallory):
    once, often = tells(ben, ELSEWHERE), tells(mallory, b"no manifest")
    for _ in range(8):
        await anna.member.meet()
        await swarm.clock.advance(EPOCH_SECONDS)
    assert len(once) == 1
    assert 2 <= len(often) <= 4
    assert (anna.member.status().members, anna.member.status().strangers) == (0, 1)


async def test_who_announces_here_is_a_peer_and_is_not_asked(anna, ben) -> None:
    asked = tells(ben, ELSEWHERE)
    ben.publish()
    await ben.member.step()
    await anna.member.step()
    await anna.member.meet()
    assert asked == []
    assert (anna.member.status().members, anna.member.status().strangers) == (1, 0)


async def test_what_was_told_is_forgotten_with_the_connection(swarm, anna, ben) -> None:
    asked = tells(ben, ELSEWHERE)
    await anna.member.meet()
    swarm.network.partition([anna.transport.peer_id], [ben.transport.peer_id])
    await anna.member.meet()
    assert anna.member.status().strangers == 0
    swarm.network.partition()
    await anna.member.meet()
    assert len(asked) == 2
