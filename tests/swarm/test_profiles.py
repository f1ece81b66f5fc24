"""Members exchange profiles, and limit peers that abuse this."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol import envelope
from protocol.codec import encode
from protocol.manifest import sign_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM, PROFILE_STREAM
from protocol.profile import Profile, sign_profile
from swarm.exchange import AGAIN_SECONDS, KEPT_SECONDS, Profiles
from swarm.transport.transport import HandlerLimits, Refusal
from tests.swarm.network_parts import CREATOR, EPOCH_SECONDS, Node, answers, identity, manifest

ANNA = Profile("anna", "Two old laptops.", "tiny", "0.1.0", 1.7e9)
BEN = Profile("ben", "", "", "0.1.0", 1.7e9)
SIGNED = sign_manifest(manifest(), CREATOR)
SWARM = swarm_id(SIGNED)
HOUR = 3600.0


def serves(node: Node, answer: Callable[[], bytes]) -> list[str]:
    """Let a node answer with another profile; return the list of its requesters."""
    return answers(node, PROFILE_STREAM, answer)


async def meet(node: Node) -> None:
    """Meet twice: a peer known only by its manifest is asked from the second time on."""
    for _ in range(2):
        await node.member.meet()


def profiles_of(node: Node) -> Profiles:
    clock = node.clock
    return Profiles(node.transport, SWARM, clock, node.counters, EPOCH_SECONDS)


def no_refusal(node: Node) -> bool:
    return not any(name.startswith("profiles") for name in node.counters.snapshot())


def visible(node: Node) -> dict[str, Profile | None]:
    return {peer.peer_id: peer.profile for peer in node.member.status().peers}


async def test_nodes_exchange_profiles_and_equal_names_remain_distinct_peers(swarm):
    profiles = {"anna": ANNA, "ben": BEN, "mallory": BEN, "carla": None}
    for name, profile in profiles.items():
        await swarm.join(name, profile=profile)
    for node in swarm.nodes:
        await meet(node)
    named = {identity(name).peer_id: profile for name, profile in profiles.items()}
    for node in swarm.nodes:
        peers = node.member.status().peers
        assert len(peers) == len({p.peer_id for p in peers}) == len({p.author for p in peers}) == 3
        assert {node.transport.peer_id: named[node.transport.peer_id], **visible(node)} == named
    assert no_refusal(swarm.nodes[0])


async def test_node_requests_a_profile_hourly_and_shows_the_latest(swarm, anna, ben) -> None:
    benjamin = replace(BEN, name="benjamin")
    replies = [*(sign_profile(each, ben.identity, SWARM) for each in (BEN, benjamin)), b"nothing"]
    askers = serves(ben, lambda: replies[len(askers) - 1])
    for times, shown in enumerate((BEN, benjamin, None), 1):
        for _ in range(10):
            await meet(anna)
        assert len(askers) == times
        assert visible(anna) == {ben.transport.peer_id: shown}
        await swarm.clock.advance(AGAIN_SECONDS)


async def test_node_retries_a_peer_without_profiles_rarely_and_without_penalty(swarm, anna, old):
    old.publish()
    await old.member.step()
    await anna.member.step()
    requests: list[str] = []
    request = anna.transport.request

    async def recorded(peer: str, protocol: str, *rest: object, **options: object) -> bytes:
        requests.append(protocol)
        return await request(peer, protocol, *rest, **options)

    anna.transport.request = recorded
    for _ in range(60):
        await anna.member.meet()
        await swarm.clock.advance(EPOCH_SECONDS)
    assert 3 <= requests.count(PROFILE_STREAM) <= 8
    assert visible(anna)[old.transport.peer_id] is None
    account = anna.accounts.get(old.identity.author)
    assert (account.penalties, dict(account.refused)) == (0, {})
    assert no_refusal(anna)


async def test_node_skips_peers_in_other_swarms(anna, stranger) -> None:
    elsewhere = sign_manifest(manifest(name="elsewhere"), CREATOR)
    answers(stranger, MANIFEST_STREAM, lambda: elsewhere)
    askers = serves(stranger, lambda: sign_profile(ANNA, stranger.identity, SWARM))
    await meet(anna)
    assert askers == []


async def test_node_rejects_a_profile_replayed_by_another_author(swarm, anna):
    ben = await swarm.join("ben", profile=BEN)
    mallory = await swarm.join("mallory")
    replayed = sign_profile(BEN, ben.identity, SWARM)
    askers = serves(mallory, lambda: replayed)
    await meet(anna)
    assert askers == [anna.transport.peer_id]
    assert visible(anna) == {ben.transport.peer_id: BEN, mallory.transport.peer_id: None}
    assert anna.count("profiles_refused{reason=other_author}") == 1


MALLORYS = sign_profile(BEN, identity("mallory"), SWARM)


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (MALLORYS[:40] + identity("ben").author + MALLORYS[72:], "bad_signature"),
        (sign_profile(BEN, identity("mallory"), bytes(32)), "wrong_swarm"),
        (SIGNED[: len(MALLORYS)], "bad_magic"),
        (b"", "truncated"),
    ],
    ids=["forged", "of another swarm", "of another kind", "no bytes"],
)
async def test_node_rejects_an_invalid_profile(anna, mallory, forged, reason):
    serves(mallory, lambda: forged)
    await meet(anna)
    assert visible(anna) == {mallory.transport.peer_id: None}
    assert anna.count(f"profiles_refused{{reason={reason}}}") == 1


@pytest.mark.parametrize(
    "text",
    [
        "eve\x1b]0;owned\x07",
        "eve\nanna",
        "\u202eanna",
        "\u2066anna\u2069",
        "an\u200bna",
        "e" + "\u0336" * 20,
        "\u0301eve",
        "e\u0301ve",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        "\u3164",
        "e" * 49,
    ],
)
async def test_node_rejects_profile_with_unsafe_text(anna, eve, text: str) -> None:
    wire = {"name": text, "line": "", "model": "", "version": "", "made": 1.7e9}
    serves(eve, lambda: envelope.close(envelope.PROFILE, SWARM, eve.identity, encode(wire)))
    await meet(anna)
    assert visible(anna) == {eve.transport.peer_id: None}
    (refused,) = (n for n in anna.counters.snapshot() if n.startswith("profiles_refused"))
    assert refused.partition("reason=")[2] in ("bad_schema}", "too_large}")


async def test_node_does_not_read_or_retry_a_10_megabyte_profile(anna, flo) -> None:
    askers = serves(flo, lambda: bytes(10_000_000))
    for _ in range(8):
        await meet(anna)
    assert (len(askers), anna.count("profiles_refused{reason=response_too_large}")) == (1, 1)
    assert anna.transport.bytes_in < 100_000


async def test_stalled_profile_delays_no_other_profile(swarm, anna) -> None:
    ben = await swarm.join("ben", profile=BEN)
    flo = await swarm.join("flo")

    async def never(asker: str, request: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    flo.transport.handle(PROFILE_STREAM, never, HandlerLimits(64, 8, 8))
    await anna.member.meet()
    meeting = asyncio.ensure_future(anna.member.meet())
    await swarm.clock.advance(1.0)
    assert visible(anna)[ben.transport.peer_id] == BEN
    assert not meeting.done()
    await swarm.clock.advance(30.0)
    await meeting
    assert anna.count("profiles_refused{reason=deadline}") == 1


async def test_node_keeps_a_disconnected_peers_profile_for_one_day(swarm, anna) -> None:
    profiles = profiles_of(anna)
    ben = await swarm.join("ben", profile=BEN)
    await profiles.look(lambda peer: True)
    await ben.transport.close()
    await swarm.clock.advance(KEPT_SECONDS - HOUR)
    assert profiles.of(ben.transport.peer_id) == BEN
    await swarm.clock.advance(2 * HOUR)
    assert profiles.of(ben.transport.peer_id) is None


async def test_profile_store_is_bounded_and_keeps_longest_connected_peers(swarm, monkeypatch):
    monkeypatch.setattr("swarm.exchange.MOST", 4)
    anna = await swarm.join("anna")
    profiles = profiles_of(anna)
    offline = [await swarm.join(f"gone {n}", profile=BEN) for n in range(3)]
    await profiles.look(lambda peer: True)
    for node in offline:
        await node.transport.close()
    online = [await swarm.join(f"honest {n}", profile=ANNA) for n in range(4)]
    await profiles.look(lambda peer: True)
    flood = [await swarm.join(f"flo {n}", profile=BEN) for n in range(8)]
    for _ in range(5):
        await profiles.look(lambda peer: True)
    visible = [profiles.of(node.transport.peer_id) for node in (*offline, *online, *flood)]
    assert visible == [None] * 3 + [ANNA] * 4 + [None] * 8
    assert anna.count("profiles_without_room") == 8


async def test_node_refuses_profile_requests_over_its_upload_budget(swarm):
    anna = await swarm.join("anna", profile=ANNA, upload_rate=1.0)
    flo = await swarm.join("flo")
    refused = 0
    for _ in range(2000):
        try:
            await anna.transport.serve(flo.transport.peer_id, PROFILE_STREAM, b"")
        except Refusal as refusal:
            refused += refusal.reason == "over_budget"
    assert refused > 0
    assert anna.count("uploads_refused") == refused
    with pytest.raises(Refusal):
        await anna.transport.serve(flo.transport.peer_id, PROFILE_STREAM, b"more")
