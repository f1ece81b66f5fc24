"""Flo floods the network; mallory serves and stores data of others."""

import asyncio
from contextlib import suppress
from hashlib import sha256

import pytest

from experiments.memory_transport import MemoryTransport
from protocol.announcement import Offer
from protocol.envelope import HEAD_BYTES
from protocol.frame import seal
from protocol.messages import (
    GOSSIP_STREAM,
    PULL_STREAM,
    PullStatus,
    encode_gossip_response,
    encode_pull_response,
)
from protocol.rollout import Batch
from swarm.transport.transport import HandlerLimits, Refused
from tests.swarm.network_parts import (
    EPOCH_SECONDS,
    MemorySwarm,
    Node,
    group,
    identity,
    signed_record,
)

LIMITS = HandlerLimits(1024, concurrent=8, concurrent_per_peer=8)


async def offer_as(transport: MemoryTransport, node: Node, name: str, *offers: Offer) -> None:
    key, record, made = signed_record(node, identity(name), *offers)
    assert await transport.store(key, identity(name).author, record, made.expiry)


def offer(content_id: bytes = b"\x05" * 32, size: int = 500) -> Offer:
    return Offer(content_id, size, 1, bytes(8), 1)


def answers(transport: MemoryTransport, protocol: str, answer: bytes) -> None:
    async def serve(peer: str, request: bytes) -> bytes:
        return answer

    transport.handle(protocol, serve, LIMITS)


def never_answers(swarm: MemorySwarm, transport: MemoryTransport) -> None:
    async def never(peer: str, request: bytes) -> bytes:
        await swarm.clock.sleep(1e9)
        return b""

    for protocol in (PULL_STREAM, GOSSIP_STREAM):
        transport.handle(protocol, never, LIMITS)


async def against(name: str) -> tuple[MemorySwarm, Node, MemoryTransport]:
    """Return an honest node and a bare transport of the peer that attacks it."""
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
async def test_node_charges_mallory_for_unannounced_bytes(answer: bytes, reason: str) -> None:
    _, anna, mallory = await against("mallory")
    answers(mallory, PULL_STREAM, answer)
    await offer_as(mallory, anna, "mallory", offer())
    for _ in range(3):
        await anna.member.step()
    assert anna.authors() == set()
    assert anna.count(f"pulls_failed{{reason={reason}}}") == 1
    assert anna.accounts.get(identity("mallory").author).refused == {reason: 1}


@pytest.mark.parametrize("serves", [True, False], ids=["serves", "serves-not"])
async def test_node_takes_bens_frame_although_mallory_offers_it_first(serves):
    swarm, anna, mallory = await against("mallory")
    ben = await swarm.stranger("ben")
    groups = (group(anna.directory.epoch, 0),)
    batch = Batch(1, 1, anna.clock.time(), "tiny", bytes(32), 1.0, 16, groups)
    frame = seal(batch, identity("ben"), anna.directory.swarm_id)
    good = encode_pull_response(PullStatus.OK, frame)
    answers(mallory, PULL_STREAM, good if serves else encode_pull_response(PullStatus.NOT_FOUND))
    answers(ben, PULL_STREAM, good)
    bens = Offer(sha256(frame).digest(), len(frame), 1, bytes((0,) * 7 + (1,)), 1)
    await offer_as(mallory, anna, "mallory", bens)
    for _ in range(4):
        await anna.member.step()
        await swarm.clock.advance(EPOCH_SECONDS / 8)
    assert anna.authors() == set()
    await offer_as(ben, anna, "ben", bens)
    await anna.member.step()
    assert anna.authors() == {identity("ben").author}
    assert anna.accounts.get(identity("ben").author).penalties == 0
    assert anna.accounts.banned(identity("mallory").author) == serves


@pytest.mark.parametrize(
    "bend",
    [
        lambda made: {"expiry": made.expiry + 3 * EPOCH_SECONDS},
        lambda made: {"epoch": made.epoch + 3},
        lambda made: {"shard": made.shard + 1},
        lambda made: {"depth": 12, "shard": made.shard},
    ],
)
async def test_node_rejects_record_with_bad_time_or_key(bend) -> None:
    _, anna, mallory = await against("mallory")
    author = identity("mallory")
    honest = signed_record(anna, author, offer())
    bent = signed_record(anna, author, offer(), **bend(honest.announcement))
    for key in (honest.key, bent.key):
        await mallory.store(key, author.author, bent.value, bent.announcement.expiry)
        assert await anna.transport.read(key) == {}
    assert anna.directory.accept(bent.value) is None


@pytest.mark.parametrize(("signer", "longer"), [("mallory", 0), ("ben", 9)])
async def test_node_rejects_foreign_subkey_or_extended_expiry(signer, longer) -> None:
    _, anna, mallory = await against("mallory")
    key, record, made = signed_record(anna, identity(signer), offer())
    await mallory.store(key, identity("ben").author, record, made.expiry + longer)
    assert await anna.transport.read(key) == {}
    assert anna.count("records_refused") > 0


async def test_node_ignores_older_announcement_from_gossip() -> None:
    _, anna, mallory = await against("mallory")
    old, new = (signed_record(anna, identity("ben"), sequence=number) for number in (1, 2))
    assert anna.directory.accept(new.value) is not None
    answers(mallory, GOSSIP_STREAM, encode_gossip_response([old.value]))
    await anna.member.step()
    (ben,) = [k for k in anna.directory.known() if k.author == identity("ben").author]
    assert ben.announcement.sequence == 2


@pytest.mark.parametrize("answer", [b"\x90" * 100_000, b"", b"\xc1", bytes(300_000)])
async def test_node_counts_bad_gossip(answer: bytes) -> None:
    _, anna, mallory = await against("mallory")
    answers(mallory, GOSSIP_STREAM, answer)
    await anna.member.step()
    failed = [n for name, n in anna.counters.snapshot().items() if name.startswith("gossip_fail")]
    assert failed == [1]


async def test_node_serves_others_during_a_pull_flood() -> None:
    swarm, anna, flo = await against("flo")
    ben = await swarm.join("ben")
    anna.publish()
    await anna.member.step()
    (offered,) = anna.outbox.offers(1)
    pull_of = (anna.transport.peer_id, PULL_STREAM, offered.content_id)

    async def pull() -> bool:
        with suppress(Refused):
            return (await flo.request(*pull_of, limit=1 << 20, deadline=9))[0] == PullStatus.OK
        return False

    served = 0
    for _ in range(100):
        served += sum(await asyncio.gather(*(pull() for _ in range(200))))
    assert served < 10_000
    assert anna.count("uploads_refused") > 0
    await ben.member.step()
    assert ben.authors() == {anna.identity.author}
    await swarm.clock.advance(60)
    assert await pull()
