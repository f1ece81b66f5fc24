"""Conformance tests of a peer's streams (protocol sections 7, 8, 11); all cases."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path

from node.conformance.records import (
    RECORD_CASES,
    Broken,
    Case,
    CaseResult,
    Peer,
    Untried,
    find,
    meet,
    require,
)
from protocol.announcement import Announcement, offer_of, open_announcement
from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.frame import content_id, open_frame
from protocol.identity import author_of
from protocol.manifest import swarm_id
from protocol.messages import (
    CONTENT_ID_BYTES,
    DIGEST_BYTES,
    GOSSIP_STREAM,
    MANIFEST_STREAM,
    MAX_GOSSIP,
    MAX_GOSSIP_REQUEST_BYTES,
    MAX_GOSSIP_RESPONSE_BYTES,
    MAX_PROFILE_RESPONSE_BYTES,
    PROFILE_STREAM,
    PULL_STREAM,
    PullStatus,
    decode_gossip_response,
    decode_pull_response,
    record_digest,
)
from protocol.profile import open_profile
from swarm.transport.transport import PeerUnreachable, Refused, TransportError

PATIENCE = 6.0  # seconds within which a stream must close; a request has 1.5 s to arrive
PROMPT = 1.2  # the same if there is nothing to wait for
FAR = 1 << 62
_LENGTH = struct.Struct(">I")


async def _same_manifest(peer: Peer) -> None:
    again = await peer.manifest_again()
    require(swarm_id(again) == peer.swarm, "it is of another swarm the second time")


async def _manifest_of_something(peer: Peer) -> None:
    require(await peer.refuses(MANIFEST_STREAM, b"\0"), "it answered a request of one byte")


async def _over_the_limit(peer: Peer) -> None:
    for protocol in (MANIFEST_STREAM, PULL_STREAM, GOSSIP_STREAM):
        async with peer.stream(protocol) as (reader, writer):
            writer.write(_LENGTH.pack(0xFFFFFFFF))
            await writer.drain()
            await _closes(reader, f"{protocol}: it waits for four billion bytes", PROMPT)
        await peer.manifest_again()


async def _unfinished(peer: Peer) -> None:
    async with peer.stream(PULL_STREAM) as (reader, writer):
        writer.write(_LENGTH.pack(CONTENT_ID_BYTES)[:2])
        await writer.drain()
        await _closes(reader, f"it still waits for the rest of a request after {PATIENCE:g} s")


async def _once(peer: Peer) -> None:
    request = _LENGTH.pack(CONTENT_ID_BYTES) + secrets.token_bytes(CONTENT_ID_BYTES)
    async with peer.stream(PULL_STREAM) as (reader, writer):
        writer.write(request)
        await writer.drain()
        try:
            async with asyncio.timeout(PATIENCE):
                (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                await reader.readexactly(size)
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            raise Broken(f"no whole response: {error!r}") from error
        await _closes(reader, "the stream stays open after the response")


async def _closes(reader: asyncio.StreamReader, otherwise: str, patience: float = PATIENCE) -> None:
    try:
        async with asyncio.timeout(patience):
            left = await reader.read(1)
    except TimeoutError as error:
        raise Broken(otherwise) from error
    except OSError:
        return
    require(not left, "it goes on sending")


async def _unknown_stream(peer: Peer) -> None:
    try:
        async with peer.stream("/swarm-node/0/nothing") as (reader, _), asyncio.timeout(PATIENCE):
            await reader.read(1)  # a client may send before the other side accepts the protocol
    except (PeerUnreachable, OSError):
        return
    raise Broken("it opens a stream of a protocol that does not exist")


async def _unknown_frame(peer: Peer) -> None:
    wanted = secrets.token_bytes(CONTENT_ID_BYTES)
    status, _ = decode_pull_response(await peer.ask(PULL_STREAM, wanted, 2))
    require(status is not PullStatus.OK, "it gives a frame for a content id drawn at random")


async def _odd_content_ids(peer: Peer) -> None:
    for size in (0, CONTENT_ID_BYTES - 1, CONTENT_ID_BYTES + 1):
        refused = await peer.refuses(PULL_STREAM, bytes(size))
        require(refused, f"it answered a request of {size} bytes")


async def _gossip(peer: Peer, after: int, limit: int, known: Sequence[bytes] = ()) -> list[bytes]:
    digests = b"".join(sorted({record_digest(record) for record in known}))
    request = encode({"after": after, "limit": limit, "known": digests})
    answer = await peer.ask(GOSSIP_STREAM, request, MAX_GOSSIP_RESPONSE_BYTES)
    try:
        return decode_gossip_response(answer, limit)
    except ProtocolError as error:
        raise Broken(f"the response is {error.code}: {error}") from error


async def _all_gossip(peer: Peer) -> dict[bytes, Announcement]:
    found = {}
    for record in await _gossip(peer, 0, MAX_GOSSIP):
        try:
            author, announcement = open_announcement(record, peer.swarm, peer.manifest)
        except ProtocolError as error:
            raise Broken(f"a record of it is {error.code}: {error}") from error
        found[author] = announcement
    return found


async def _gossip_of_later_epochs(peer: Peer) -> None:
    require(not await _gossip(peer, FAR, MAX_GOSSIP), "it gives records of earlier epochs")
    known = await _all_gossip(peer)
    if not known:
        raise Untried("it knows no announcement yet")
    newest = max(announcement.epoch for announcement in known.values())
    for record in await _gossip(peer, newest, MAX_GOSSIP):
        _, announcement = open_announcement(record, peer.swarm, peer.manifest)
        require(announcement.epoch > newest, f"asked for more than {newest}: {announcement.epoch}")


async def _gossip_of_what_is_new(peer: Peer) -> None:
    known = await _gossip(peer, 0, MAX_GOSSIP)
    if not known:
        raise Untried("it knows no announcement yet")
    again = await _gossip(peer, 0, MAX_GOSSIP, known)
    require(not set(known) & set(again), "it gives a record that the request says is known")


MALFORMED: dict[str, bytes] = {
    "a limit of 0": encode({"after": 0, "limit": 0, "known": b""}),
    "a limit of 257": encode({"after": 0, "limit": MAX_GOSSIP + 1, "known": b""}),
    "a negative epoch": encode({"after": -1, "limit": 1, "known": b""}),
    "its fields in another order": encode({"limit": 1, "after": 0, "known": b""}),
    "another field": encode({"after": 0, "limit": 1, "known": b"", "more": 1}),
    "a field missing, as in version 1": encode({"after": 0, "limit": 1}),
    "half a digest": encode({"after": 0, "limit": 1, "known": b"\0"}),
    "a digest twice": encode({"after": 0, "limit": 1, "known": bytes(2 * DIGEST_BYTES)}),
    "a number in a longer form": encode({"after": 0})[:-1].replace(b"\x81", b"\x83", 1)
    + b"\xcc\x00"
    + encode("limit")
    + b"\x01"
    + encode("known")
    + encode(b""),
    "a byte behind it": encode({"after": 0, "limit": 1, "known": b""}) + b"\0",
    "more bytes than are allowed": bytes(MAX_GOSSIP_REQUEST_BYTES + 1),
    "nothing": b"",
}


async def _malformed_gossip(peer: Peer) -> None:
    for what, request in MALFORMED.items():
        require(await peer.refuses(GOSSIP_STREAM, request), f"it answered a request with {what}")


async def _own_frames(peer: Peer) -> None:
    announcement = (await _all_gossip(peer)).get(author_of(peer.peer_id))
    if announcement is None or not announcement.offers:
        raise Untried("it offers no frame now")
    for offer in announcement.offers:
        answer = await peer.ask(PULL_STREAM, offer.content_id, offer.size + 1)
        status, frame = decode_pull_response(answer)
        if status is not PullStatus.OK:
            raise Untried(f"it is asked for {offer.content_id.hex()} and answers {status.name}")
        require(content_id(frame) == offer.content_id, "the frame has another content id")
        try:
            opened = open_frame(frame, peer.swarm, peer.manifest)
        except ProtocolError as error:
            raise Broken(f"the frame is {error.code}: {error}") from error
        require(opened.author == author_of(peer.peer_id), "the frame is another author's")
        true = offer_of(frame, opened.batch, peer.manifest)
        require(true == offer, f"the offer says {offer}, the frame {true}")


async def _own_profile(peer: Peer) -> None:
    try:
        answer = await peer.ask(PROFILE_STREAM, b"", MAX_PROFILE_RESPONSE_BYTES)
    except (Refused, PeerUnreachable):
        await peer.manifest_again()
        return
    try:
        author, _ = open_profile(answer, peer.swarm)
    except ProtocolError as error:
        raise Broken(f"its profile is {error.code}: {error}") from error
    require(author == author_of(peer.peer_id), "its profile is another author's")


async def _still_there(peer: Peer) -> None:
    try:
        await peer.manifest_again()
    except TransportError as error:
        raise Broken(f"after all of this it does not answer: {error}") from error


STREAM_CASES = (
    Case(11, "hands out its manifest", _same_manifest),
    Case(11, "refuses a request for a manifest that is not empty", _manifest_of_something),
    Case(11, "closes a stream whose length is over the limit", _over_the_limit),
    Case(11, "closes a stream whose request does not come", _unfinished),
    Case(11, "closes the stream after its response", _once),
    Case(11, "opens no stream of a protocol that it does not know", _unknown_stream),
    Case(11, "answers that a frame is not there, or that it is busy", _unknown_frame),
    Case(11, "refuses content ids of another length", _odd_content_ids),
    Case(11, "gossips announcements that hold", _all_gossip),
    Case(11, "gossips no more records than it is asked for", lambda peer: _gossip(peer, 0, 1)),
    Case(11, "gossips later epochs than the one it is told", _gossip_of_later_epochs),
    Case(11, "gossips nothing that it is told is known", _gossip_of_what_is_new),
    Case(11, "refuses malformed requests for gossip", _malformed_gossip),
    Case(8, "offers frames that are as it says", _own_frames),
    Case(11, "tells a profile that holds and is its own, or none", _own_profile),
    Case(11, "still answers after all of this", _still_there),
)

CASES = (*RECORD_CASES, *STREAM_CASES)


async def look_at(address: str, folder: Path, over: str) -> list[CaseResult]:
    """Return the result of each case; arguments and errors as for ``meet``."""
    async with meet(address, folder, over) as peer:
        return [await find(case, peer) for case in CASES]
