"""What members are told by each other of themselves, and what comes of those who abuse it."""

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
    """Let a node answer another profile; who asked for it."""
    return answers(node, PROFILE_STREAM, answer)


async def meet(node: Node) -> None:
    """Twice: whom it meets only by a manifest it asks from the second time on."""
    for _ in range(2):
        await node.member.meet()


def profiles_of(node: Node) -> Profiles:
    clock = node.clock
    return Profiles(node.transport, SWARM, clock, node.counters, EPOCH_SECONDS)


def unblamed(node: Node) -> bool:
    return not any(name.startswith("profiles") for name in node.counters.snapshot())


def told(node: Node) -> dict[str, Profile | None]:
    return {peer.peer_id: peer.profile for peer in node.member.status().peers}


async def test_members_tell_each_other_their_names_and_two_of_one_name_stay_two_peers(swarm):
    profiles = {"anna": ANNA, "ben": BEN, "mallory": BEN, "carla": None}
    for name, profile in profiles.items():
        await swarm.join(name, profile=profile)
    for node in swarm.nodes:
        await meet(node)
    named = {identity(name).peer_id: profile for name, profile in profiles.items()}
    for node in swarm.nodes:
        peers = node.member.status().peers
        assert len(peers) == len({p.peer_id for p in peers}) == len({p.author for p in peers}) == 3
        assert {node.transport.peer_id: named[node.transport.peer_id], **told(node)} == named
    assert unblamed(swarm.nodes[0])


async def test_each_is_asked_once_an_hour_and_shows_what_it_tells_then(swarm, anna, ben) -> None:
    benjamin = replace(BEN, name="benjamin")
    tells = [*(sign_profile(each, ben.identity, SWARM) for each in (BEN, benjamin)), b"nothing"]
    asked = serves(ben, lambda: tells[len(asked) - 1])
    for times, shown in enumerate((BEN, benjamin, None), 1):
        for _ in range(10):
            await meet(anna)
        assert len(asked) == times
        assert told(anna) == {ben.transport.peer_id: shown}
        await swarm.clock.advance(AGAIN_SECONDS)


async def test_an_older_peer_without_profiles_is_asked_ever_less_and_not_blamed(swarm, anna, old):
    old.publish()
    await old.member.step()
    await anna.member.step()
    tried: list[str] = []
    request = anna.transport.request

    async def noted(peer: str, protocol: str, *rest: object, **options: object) -> bytes:
        tried.append(protocol)
        return await request(peer, protocol, *rest, **options)

    anna.transport.request = noted
    for _ in range(60):
        await anna.member.meet()
        await swarm.clock.advance(EPOCH_SECONDS)
    assert 3 <= tried.count(PROFILE_STREAM) <= 8
    assert told(anna)[old.transport.peer_id] is None
    account = anna.accounts.get(old.identity.author)
    assert (account.penalties, dict(account.refused)) == (0, {})
    assert unblamed(anna)


async def test_nobody_of_another_swarm_is_asked(anna, stranger) -> None:
    elsewhere = sign_manifest(manifest(name="elsewhere"), CREATOR)
    answers(stranger, MANIFEST_STREAM, lambda: elsewhere)
    asked = serves(stranger, lambda: sign_profile(ANNA, stranger.identity, SWARM))
    await meet(anna)
    assert asked == []


async def test_mallory_does_not_pass_for_another_by_serving_the_profile_of_that_one(swarm, anna):
    ben = await swarm.join("ben", profile=BEN)
    mallory = await swarm.join("mallory")
    replayed = sign_profile(BEN, ben.identity, SWARM)
    asked = serves(mallory, lambda: replayed)
    await meet(anna)
    assert asked == [anna.transport.peer_id]
    assert told(anna) == {ben.transport.peer_id: BEN, mallory.transport.peer_id: None}
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
async def test_mallory_forges_nothing_that_is_shown(anna, mallory, forged, reason):
    serves(mallory, lambda: forged)
    await meet(anna)
    assert told(anna) == {mallory.transport.peer_id: None}
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
async def test_eves_texts_that_act_are_refused_whole(anna, eve, text: str) -> None:
    wire = {"name": text, "line": "", "model": "", "version": "", "made": 1.7e9}
    serves(eve, lambda: envelope.close(envelope.PROFILE, SWARM, eve.identity, encode(wire)))
    await meet(anna)
    assert told(anna) == {eve.transport.peer_id: None}
    (refused,) = (n for n in anna.counters.snapshot() if n.startswith("profiles_refused"))
    assert refused.partition("reason=")[2] in ("bad_schema}", "too_large}")


async def test_flos_ten_megabytes_are_not_read_and_she_is_left_alone(anna, flo) -> None:
    asked = serves(flo, lambda: bytes(10_000_000))
    for _ in range(8):
        await meet(anna)
    assert (len(asked), anna.count("profiles_refused{reason=response_too_large}")) == (1, 1)
    assert anna.transport.bytes_in < 100_000


async def test_flo_who_never_finishes_holds_up_no_other(swarm, anna) -> None:
    ben = await swarm.join("ben", profile=BEN)
    flo = await swarm.join("flo")

    async def never(asker: str, request: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    flo.transport.handle(PROFILE_STREAM, never, HandlerLimits(64, 8, 8))
    await anna.member.meet()
    meeting = asyncio.ensure_future(anna.member.meet())
    await swarm.clock.advance(1.0)
    assert told(anna)[ben.transport.peer_id] == BEN
    assert not meeting.done()
    await swarm.clock.advance(30.0)
    await meeting
    assert anna.count("profiles_refused{reason=deadline}") == 1


async def test_what_one_told_who_is_gone_is_shown_for_a_day_and_no_longer(swarm, anna) -> None:
    profiles = profiles_of(anna)
    ben = await swarm.join("ben", profile=BEN)
    await profiles.look(lambda peer: True)
    await ben.transport.close()
    await swarm.clock.advance(KEPT_SECONDS - HOUR)
    assert profiles.of(ben.transport.peer_id) == BEN
    await swarm.clock.advance(2 * HOUR)
    assert profiles.of(ben.transport.peer_id) is None


async def test_of_a_flood_of_profiles_few_are_kept_and_those_connected_longest(swarm, monkeypatch):
    monkeypatch.setattr("swarm.exchange.MOST", 4)
    anna = await swarm.join("anna")
    profiles = profiles_of(anna)
    gone = [await swarm.join(f"gone {n}", profile=BEN) for n in range(3)]
    await profiles.look(lambda peer: True)
    for node in gone:
        await node.transport.close()
    there = [await swarm.join(f"honest {n}", profile=ANNA) for n in range(4)]
    await profiles.look(lambda peer: True)
    flood = [await swarm.join(f"flo {n}", profile=BEN) for n in range(8)]
    for _ in range(5):
        await profiles.look(lambda peer: True)
    told = [profiles.of(node.transport.peer_id) for node in (*gone, *there, *flood)]
    assert told == [None] * 3 + [ANNA] * 4 + [None] * 8
    assert anna.count("profiles_without_room") == 8


async def test_a_node_serves_its_profile_within_its_budget_and_to_few_at_a_time(swarm):
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
