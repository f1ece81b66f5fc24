"""Announcements: where they stand, which one counts, and what a newcomer can fetch."""

from __future__ import annotations

import pytest

from protocol.announcement import (
    Announcement,
    open_announcement,
    record_key,
    shard_of,
    sign_announcement,
)
from protocol.manifest import AllowList, ProofOfWork, open_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM, MAX_DIGESTS
from swarm.exchange import fetch_manifest
from swarm.transport.transport import Refused
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, identity


async def test_an_announcement_stands_in_its_authors_shard_under_its_author() -> None:
    anna = await MemorySwarm().join("anna")
    assert await anna.directory.announce([], 5, 1)
    directory, author = anna.directory, anna.identity.author
    key = record_key(directory.swarm_id, directory.epoch, 0, 0)
    assert list(await anna.transport.read(key)) == [author]


async def test_an_epochs_announcements_keep_the_depth_that_suited_its_first() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    directory, author = anna.directory, anna.identity.author
    epoch, several = directory.epoch, {identity(f"author {n}").author for n in range(8)}
    directory.shards.density.sound([{6: several}] * 2)
    assert await directory.announce([], 5, 1)
    directory.shards.density.sound([{0: several}] * 2)
    assert directory.shards.density.depth == 0.0
    assert await directory.announce([], 5, 2)

    shard = shard_of(author, epoch, 5)
    found = await anna.transport.read(record_key(directory.swarm_id, epoch, 5, shard))
    opened = open_announcement(found[author], directory.swarm_id, swarm.manifest)[1]
    assert (opened.depth, opened.shard, opened.sequence) == (5, shard, 2)
    assert not await anna.transport.read(record_key(directory.swarm_id, epoch, 0, 0))

    await swarm.clock.advance(EPOCH_SECONDS)
    assert await directory.announce([], 5, 3)
    key = record_key(directory.swarm_id, epoch + 1, 0, 0)
    assert list(await anna.transport.read(key)) == [author]


async def test_what_the_asker_knows_is_left_out_of_an_answer_until_its_author_says_more() -> None:
    swarm = MemorySwarm()
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    asked = []
    for sequence in (1, 2):
        await anna.directory.announce([], 1, sequence)
        for _ in range(2):
            records = await ben.exchange.gossip(anna.transport.peer_id)
            asked.append(len(records))
            for record in records:
                assert ben.directory.accept(record) is not None
    assert asked == [1, 0, 1, 0]


async def test_who_knows_more_than_an_answer_holds_names_none_of_it() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    for number in range(MAX_DIGESTS + 1):
        epoch = anna.directory.epoch
        assert len(anna.directory.digests(epoch - 1)) == number
        author = identity(f"author {number}")
        made = Announcement(epoch, 0, 0, 1, 1, swarm.clock.time() + 60.0, 0, ())
        record = sign_announcement(made, author, anna.directory.swarm_id)
        assert anna.directory.accept(record) is not None
    assert anna.directory.digests(epoch - 1) == ()


async def test_a_later_announcement_of_the_epoch_takes_the_place_of_the_first() -> None:
    swarm = MemorySwarm()
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    for sequence in (1, 2, 3):
        assert await anna.directory.announce([], sequence, sequence)
    (found,) = await ben.directory.read()
    assert found.announcement.sequence == 3
    assert await ben.directory.read() == []


async def test_an_announcement_is_found_in_the_next_epoch_and_gone_after_it() -> None:
    swarm = MemorySwarm()
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    await anna.directory.announce([], 1, 1)
    await swarm.clock.advance(EPOCH_SECONDS)
    assert len(await ben.directory.read()) == 1
    await swarm.clock.advance(EPOCH_SECONDS)
    assert ben.directory.known() == []


@pytest.mark.parametrize("rule", [ProofOfWork(8), AllowList((identity("anna").author,))])
async def test_the_manifests_admission_rule_holds_for_announcements(rule) -> None:
    swarm = MemorySwarm(admission=rule)
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    assert await anna.directory.announce([], 1, 1)
    assert len(await ben.directory.read()) == 1
    if isinstance(rule, AllowList):
        assert not await ben.directory.announce([], 1, 1)


async def test_a_newcomer_fetches_the_manifest_from_any_member_and_a_member_refuses_other_bytes():
    swarm = MemorySwarm()
    anna, newcomer = await swarm.join("anna"), await swarm.stranger("newcomer")
    signed = await fetch_manifest(newcomer, anna.transport.peer_id)
    assert open_manifest(signed) == swarm.manifest
    assert swarm_id(signed) == anna.directory.swarm_id
    with pytest.raises(Refused):
        await newcomer.request(
            anna.transport.peer_id, MANIFEST_STREAM, b"more", limit=9, deadline=9
        )
