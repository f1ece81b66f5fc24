"""Announcements: where they stand, which one counts, and what a newcomer can fetch."""

from __future__ import annotations

import asyncio

import pytest

from protocol.admission_rule import AllowList, ProofOfWork
from protocol.keys import reader_shards, record_key, shard_of
from protocol.manifest import open_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM
from swarm.exchange import fetch_manifest
from swarm.transport.transport import Refused
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, identity


def test_an_announcement_stands_in_its_authors_shard_under_its_author() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm(shards=8)
        anna = await swarm.join("anna")
        assert await anna.directory.announce([], 5, 1)
        directory, author = anna.directory, anna.identity.author
        shard = shard_of(author, directory.epoch, 8)
        key = record_key(directory.swarm_id, directory.epoch, 8, shard)
        assert list(await anna.transport.read(key)) == [author]

    asyncio.run(scenario())


def test_a_reader_looks_into_two_drawn_shards_of_two_epochs() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm(shards=8)
        anna = await swarm.join("anna")
        asked = []

        async def read(key: str) -> dict[bytes, bytes]:
            asked.append(key)
            return {}

        anna.transport.read = read
        await anna.directory.read()
        directory, author = anna.directory, anna.identity.author
        assert asked == [
            record_key(directory.swarm_id, epoch, 8, shard)
            for epoch in (directory.epoch, directory.epoch - 1)
            for shard in reader_shards(author, epoch, b"anna", 8)
        ]
        assert len(asked) == 4

    asyncio.run(scenario())


def test_a_later_announcement_of_the_epoch_takes_the_place_of_the_first() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        anna, ben = await swarm.join("anna"), await swarm.join("ben")
        for sequence in (1, 2, 3):
            assert await anna.directory.announce([], sequence, sequence)
        (found,) = await ben.directory.read()
        assert found.announcement.sequence == 3
        assert await ben.directory.read() == []

    asyncio.run(scenario())


def test_an_announcement_is_found_in_the_next_epoch_and_gone_after_it() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        anna, ben = await swarm.join("anna"), await swarm.join("ben")
        await anna.directory.announce([], 1, 1)
        await swarm.clock.advance(EPOCH_SECONDS)
        assert len(await ben.directory.read()) == 1
        await swarm.clock.advance(EPOCH_SECONDS)
        assert ben.directory.known() == []

    asyncio.run(scenario())


@pytest.mark.parametrize("rule", [ProofOfWork(8), AllowList((identity("anna").author,))])
def test_the_manifests_admission_rule_holds_for_announcements(rule) -> None:
    async def scenario() -> None:
        swarm = MemorySwarm(admission=rule)
        anna, ben = await swarm.join("anna"), await swarm.join("ben")
        assert await anna.directory.announce([], 1, 1)
        assert len(await ben.directory.read()) == 1
        if isinstance(rule, AllowList):
            assert not await ben.directory.announce([], 1, 1)

    asyncio.run(scenario())


def test_a_newcomer_fetches_the_manifest_from_any_member_and_a_member_refuses_other_bytes() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        anna, newcomer = await swarm.join("anna"), await swarm.stranger("newcomer")
        signed = await fetch_manifest(newcomer, anna.transport.peer_id)
        assert open_manifest(signed) == swarm.manifest
        assert swarm_id(signed) == anna.directory.swarm_id
        with pytest.raises(Refused):
            await newcomer.request(
                anna.transport.peer_id, MANIFEST_STREAM, b"more", limit=9, deadline=9
            )

    asyncio.run(scenario())
