"""Peers that misbehave on the network: flo floods, mallory serves and stores what is not hers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from protocol.announcement import Announcement, Offer, record_key, shard_of, sign_announcement
from protocol.envelope import HEAD_BYTES
from protocol.messages import (
    GOSSIP_STREAM,
    PULL_STREAM,
    PullStatus,
    encode_gossip_response,
    encode_pull_response,
)
from swarm.transport.memory import MemoryTransport
from swarm.transport.transport import HandlerLimits, RecordTooLarge, Refused
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, Node, identity

LIMITS = HandlerLimits(1024, concurrent=8, concurrent_per_peer=8)


def announcement_of(node: Node, name: str, *offers: Offer, sequence: int = 1) -> Announcement:
    """What an author called ``name`` would say now in ``node``'s swarm."""
    directory = node.directory
    author, epoch = identity(name).author, directory.epoch
    return Announcement(
        epoch=epoch,
        depth=0,
        shard=shard_of(author, epoch, 0),
        sequence=sequence,
        policy_step=1,
        expiry=node.clock.time() + EPOCH_SECONDS,
        nonce=0,
        offers=offers,
    )


async def offer_as(transport: MemoryTransport, node: Node, name: str, *offers: Offer) -> None:
    """Store a well-formed announcement of ``name``."""
    made = announcement_of(node, name, *offers)
    record = sign_announcement(made, identity(name), node.directory.swarm_id)
    assert await transport.store(key_of(node, made), identity(name).author, record, made.expiry)


def key_of(node: Node, made: Announcement) -> str:
    directory = node.directory
    return record_key(directory.swarm_id, made.epoch, made.depth, made.shard)


def offer(content_id: bytes = b"\x05" * 32, size: int = 500) -> Offer:
    return Offer(content_id, size, 1, bytes(8), 1)


async def against(name: str) -> tuple[MemorySwarm, Node, MemoryTransport]:
    """An honest node and a bare transport of the peer who attacks it."""
    swarm = MemorySwarm()
    return swarm, await swarm.join("anna"), await swarm.stranger(name)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (encode_pull_response(PullStatus.OK, bytes(HEAD_BYTES + 9)), "wrong_content"),
        (bytes(501 + 1), "response_too_large"),
        (b"", "wrong_content"),
        (b"\x09", "wrong_content"),
    ],
)
def test_mallory_serves_other_bytes_than_she_announced(answer: bytes, reason: str) -> None:
    async def scenario() -> None:
        _, anna, mallory = await against("mallory")

        async def serve(peer: str, request: bytes) -> bytes:
            return answer

        mallory.handle(PULL_STREAM, serve, LIMITS)
        await offer_as(mallory, anna, "mallory", offer())
        for _ in range(3):
            await anna.member.step()
        assert anna.authors() == set()
        assert anna.count(f"pulls_failed{{reason={reason}}}") == 1
        assert anna.accounts.get(identity("mallory").author).refused == {reason: 1}

    asyncio.run(scenario())


def test_mallory_serves_so_slowly_that_she_is_given_up() -> None:
    async def scenario() -> None:
        swarm, anna, mallory = await against("mallory")
        swarm.network.upload_rate[mallory.peer_id] = 10.0

        async def serve(peer: str, request: bytes) -> bytes:
            return encode_pull_response(PullStatus.OK, bytes(499))

        mallory.handle(PULL_STREAM, serve, LIMITS)
        await offer_as(mallory, anna, "mallory", offer())
        turn = asyncio.ensure_future(anna.member.step())
        await swarm.clock.advance(5)
        await turn
        assert anna.count("pulls_failed{reason=too_slow}") == 1

    asyncio.run(scenario())


def test_mallory_never_answers_and_holds_nobody_else_up() -> None:
    async def scenario() -> None:
        swarm, anna, mallory = await against("mallory")
        ben = await swarm.join("ben")

        async def never(peer: str, request: bytes) -> bytes:
            await swarm.clock.sleep(1e6)
            return b""

        mallory.handle(PULL_STREAM, never, LIMITS)
        mallory.handle(GOSSIP_STREAM, never, LIMITS)
        await offer_as(mallory, anna, "mallory", offer())
        running = [asyncio.ensure_future(node.member.run()) for node in (anna, ben)]
        ben.publish()
        await swarm.clock.advance(EPOCH_SECONDS / 3)
        assert anna.authors() == {ben.identity.author}
        await swarm.clock.advance(EPOCH_SECONDS)
        assert anna.count("pulls_failed{reason=deadline}") >= 1
        for task in running:
            task.cancel()

    asyncio.run(scenario())


def test_mallory_stores_a_record_under_another_authors_subkey() -> None:
    async def scenario() -> None:
        _, anna, mallory = await against("mallory")
        made = announcement_of(anna, "mallory", offer())
        record = sign_announcement(made, identity("mallory"), anna.directory.swarm_id)
        victim = identity("ben").author
        await mallory.store(key_of(anna, made), victim, record, made.expiry)
        assert await anna.transport.read(key_of(anna, made)) == {}
        assert anna.count("records_refused") > 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "bend",
    [
        lambda made: replace(made, expiry=made.expiry + 3 * EPOCH_SECONDS),
        lambda made: replace(made, epoch=made.epoch + 3, expiry=made.expiry + 3 * EPOCH_SECONDS),
        lambda made: replace(made, shard=made.shard + 1),
        lambda made: replace(made, depth=12),
    ],
)
def test_mallory_bends_time_and_place_of_a_record(bend) -> None:
    async def scenario() -> None:
        _, anna, mallory = await against("mallory")
        honest = announcement_of(anna, "mallory", offer())
        made = bend(honest)
        record = sign_announcement(made, identity("mallory"), anna.directory.swarm_id)
        for where in (honest, made):
            key = key_of(anna, where)
            await mallory.store(key, identity("mallory").author, record, made.expiry)
            assert await anna.transport.read(key) == {}
        assert anna.directory.accept(record) is None

    asyncio.run(scenario())


def test_mallory_prolongs_another_authors_record() -> None:
    async def scenario() -> None:
        _, anna, mallory = await against("mallory")
        made = announcement_of(anna, "ben")
        record = sign_announcement(made, identity("ben"), anna.directory.swarm_id)
        await mallory.store(key_of(anna, made), identity("ben").author, record, made.expiry + 9)
        assert await anna.transport.read(key_of(anna, made)) == {}

    asyncio.run(scenario())


def test_mallory_replays_an_older_announcement_by_gossip() -> None:
    async def scenario() -> None:
        _, anna, mallory = await against("mallory")
        swarm_id = anna.directory.swarm_id
        old = sign_announcement(announcement_of(anna, "ben"), identity("ben"), swarm_id)
        new = sign_announcement(announcement_of(anna, "ben", sequence=2), identity("ben"), swarm_id)
        assert anna.directory.accept(new) is not None

        async def gossip(peer: str, request: bytes) -> bytes:
            return encode_gossip_response([old])

        mallory.handle(GOSSIP_STREAM, gossip, LIMITS)
        await anna.member.step()
        (ben,) = [k for k in anna.directory.known() if k.author == identity("ben").author]
        assert ben.announcement.sequence == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [b"\x90" * 100_000, b"", b"\xc1", bytes(300_000)])
def test_mallory_gossips_garbage(answer: bytes) -> None:
    async def scenario() -> None:
        _, anna, mallory = await against("mallory")

        async def gossip(peer: str, request: bytes) -> bytes:
            return answer

        mallory.handle(GOSSIP_STREAM, gossip, LIMITS)
        await anna.member.step()
        failed = {k: v for k, v in anna.counters.snapshot().items() if k.startswith("gossip_fail")}
        assert sum(failed.values()) == 1

    asyncio.run(scenario())


def test_nobody_stores_a_record_over_one_kibibyte() -> None:
    async def scenario() -> None:
        _, _, mallory = await against("mallory")
        with pytest.raises(RecordTooLarge):
            await mallory.store("any", b"mallory", bytes(1025), 2e9)

    asyncio.run(scenario())


def test_flo_floods_pulls_and_others_are_still_served() -> None:
    async def scenario() -> None:
        swarm, anna, flo = await against("flo")
        ben = await swarm.join("ben")
        anna.publish()
        await anna.member.step()
        (offered,) = anna.outbox.offers(1)

        async def pull() -> bool:
            try:
                answer = await flo.request(
                    anna.transport.peer_id,
                    PULL_STREAM,
                    offered.content_id,
                    limit=1 << 20,
                    deadline=9,
                )
            except Refused:
                return False
            return answer[0] == PullStatus.OK

        served = 0
        for _ in range(100):
            served += sum(await asyncio.gather(*(pull() for _ in range(200))))
        assert served < 10_000
        assert anna.count("uploads_refused") > 0
        await ben.member.step()
        assert ben.authors() == {anna.identity.author}
        await swarm.clock.advance(60)
        assert await pull()

    asyncio.run(scenario())


def test_flo_holds_many_requests_open_and_is_refused_beyond_her_places() -> None:
    async def scenario() -> None:
        swarm, anna, flo = await against("flo")
        cleo = await swarm.stranger("cleo")
        release = asyncio.Event()

        async def slow(peer: str, request: bytes) -> bytes:
            await release.wait()
            return b"done"

        limits = HandlerLimits(10, concurrent=8, concurrent_per_peer=4)
        anna.transport.handle("slow", slow, limits)

        def ask(who: MemoryTransport) -> asyncio.Task[bytes]:
            request = who.request(anna.transport.peer_id, "slow", b"", limit=10, deadline=1e3)
            return asyncio.ensure_future(request)

        flood = [ask(flo) for _ in range(500)]
        others = [ask(cleo) for _ in range(3)]
        await swarm.clock.advance(1)
        release.set()
        flooded = await asyncio.gather(*flood, return_exceptions=True)
        served = await asyncio.gather(*others, return_exceptions=True)
        assert flooded.count(b"done") == 4
        assert served.count(b"done") == 2
        assert sum(isinstance(outcome, Refused) for outcome in flooded) == 496
        with pytest.raises(Refused):
            await flo.request(anna.transport.peer_id, "slow", bytes(11), limit=10, deadline=9)

    asyncio.run(scenario())


def test_flo_announces_more_than_the_directory_remembers(monkeypatch) -> None:
    monkeypatch.setattr("swarm.directory.MAX_KNOWN", 16)

    async def scenario() -> None:
        swarm, anna, _ = await against("flo")
        for n in range(40):
            made = announcement_of(anna, f"flo {n}", offer())
            record = sign_announcement(made, identity(f"flo {n}"), anna.directory.swarm_id)
            anna.directory.accept(record)
        assert len(anna.directory.known()) == 16
        await swarm.clock.advance(2 * EPOCH_SECONDS)
        assert anna.directory.known() == []

    asyncio.run(scenario())
