"""Conformance tests of a peer's streams, addresses and dial-backs; all cases."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from node.conformance.peer import Broken, Case, CaseResult, Peer, Untried, find, meet, require
from node.conformance.records import RECORD_CASES
from protocol.announcement import Announcement, Offer, offer_of, open_announcement, record_key
from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.frame import content_id, open_frame
from protocol.identity import Identity, author_of, decode_base58
from protocol.manifest import swarm_id
from protocol.messages import (
    CONTENT_ID_BYTES,
    DIAL_BACK_STREAM,
    DIGEST_BYTES,
    GOSSIP_STREAM,
    MANIFEST_STREAM,
    MAX_DIAL_BACK_RESPONSE_BYTES,
    MAX_GOSSIP,
    MAX_GOSSIP_REQUEST_BYTES,
    MAX_GOSSIP_RESPONSE_BYTES,
    MAX_MANIFEST_RESPONSE_BYTES,
    MAX_PROFILE_RESPONSE_BYTES,
    MAX_PULL_RESPONSE_BYTES,
    PROFILE_STREAM,
    PULL_STREAM,
    PullStatus,
    decode_dial_back_response,
    decode_gossip_response,
    decode_pull_response,
    encode_dial_back_request,
    record_digest,
)
from protocol.profile import open_profile
from swarm.transport import protobuf
from swarm.transport.libp2p.addresses import address_of
from swarm.transport.transport import (
    PeerUnreachable,
    Refused,
    TransportError,
    host_of,
    is_relayed,
    port_of,
)

PATIENCE = 6.0  # seconds within which a stream must close; a request has 1.5 s to arrive
PROMPT = 1.2  # the same if there is nothing to wait for
FAR = 1 << 62
TRIES, AGAIN_SECONDS = 5, 1.0  # to find an announcement in the DHT, where it may be on its way
_LENGTH = struct.Struct(">I")

Value = TypeVar("Value")


def _valid(name: str, decode: Callable[..., Value], *parts: Any) -> Value:
    """Decode what the peer sent; raise :class:`Broken`, which names it, if it is not valid."""
    try:
        return decode(*parts)
    except ProtocolError as error:
        raise Broken(f"{name} is {error.code}: {error}") from error


async def _refuses_all(peer: Peer, protocol: str, requests: Mapping[str, bytes]) -> None:
    for label, request in requests.items():
        require(await peer.refuses(protocol, request), f"it answered a request with {label}")


async def _same_manifest(peer: Peer) -> None:
    manifest = await peer.manifest_again()
    require(swarm_id(manifest) == peer.swarm, "it is of another swarm the second time")


async def _manifest_of_something(peer: Peer) -> None:
    require(await peer.refuses(MANIFEST_STREAM, b"\0"), "it answered a request of one byte")


async def _over_the_limit(peer: Peer) -> None:
    for protocol in (MANIFEST_STREAM, PULL_STREAM, GOSSIP_STREAM):
        async with _sent(peer, protocol, _LENGTH.pack(0xFFFFFFFF)) as reader:
            await _closes(reader, f"{protocol}: it waits for four billion bytes", PROMPT)
        await peer.manifest_again()


async def _unfinished(peer: Peer) -> None:
    async with _sent(peer, PULL_STREAM, _LENGTH.pack(CONTENT_ID_BYTES)[:2]) as reader:
        await _closes(reader, f"it still waits for the rest of a request after {PATIENCE:g} s")


async def _once(peer: Peer) -> None:
    request = _LENGTH.pack(CONTENT_ID_BYTES) + secrets.token_bytes(CONTENT_ID_BYTES)
    async with _sent(peer, PULL_STREAM, request) as reader:
        await _response(reader, MAX_PULL_RESPONSE_BYTES, "no whole response")
        await _closes(reader, "the stream stays open after the response")


async def _bytes_behind(peer: Peer) -> None:
    async with _sent(peer, MANIFEST_STREAM, _LENGTH.pack(0) + b"more") as reader:
        message = "no response to a request with bytes behind it"
        answer = await _response(reader, MAX_MANIFEST_RESPONSE_BYTES, message)
    require(swarm_id(answer) == peer.swarm, "it answers a request with bytes behind it otherwise")


@asynccontextmanager
async def _sent(peer: Peer, protocol: str, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Open a stream and send ``data``; yield the reader of what comes back."""
    async with peer.stream(protocol) as (reader, writer):
        writer.write(data)
        await writer.drain()
        yield reader


async def _response(reader: asyncio.StreamReader, limit: int, message: str) -> bytes:
    try:
        async with asyncio.timeout(PATIENCE):
            (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            return await reader.readexactly(min(size, limit))
    except (TimeoutError, OSError, EOFError) as error:
        raise Broken(f"{message}: {error!r}") from error


async def _closes(reader: asyncio.StreamReader, message: str, patience: float = PATIENCE) -> None:
    try:
        async with asyncio.timeout(patience):
            data = await reader.read(1)
    except TimeoutError as error:
        raise Broken(message) from error
    except OSError:
        return
    require(not data, "it continues to send")


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
    return _valid("the response", decode_gossip_response, answer, limit)


async def _all_gossip(peer: Peer) -> dict[bytes, Announcement]:
    by_author = {}
    for record in await _gossip(peer, 0, MAX_GOSSIP):
        args = record, peer.swarm, peer.manifest
        author, announcement = _valid("a record of it", open_announcement, *args)
        by_author[author] = announcement
    return by_author


async def _gossip_of_later_epochs(peer: Peer) -> None:
    require(not await _gossip(peer, FAR, MAX_GOSSIP), "it gives records of earlier epochs")
    by_author = await _all_gossip(peer)
    if not by_author:
        raise Untried("it knows no announcement yet")
    newest = max(announcement.epoch for announcement in by_author.values())
    for record in await _gossip(peer, newest, MAX_GOSSIP):
        _, announcement = open_announcement(record, peer.swarm, peer.manifest)
        require(announcement.epoch > newest, f"asked for more than {newest}: {announcement.epoch}")


async def _gossip_of_what_is_new(peer: Peer) -> None:
    records = await _gossip(peer, 0, MAX_GOSSIP)
    if not records:
        raise Untried("it knows no announcement yet")
    second = await _gossip(peer, 0, MAX_GOSSIP, records)
    require(not set(records) & set(second), "it gives a record that the request says is known")


_VALID = encode({"after": 0, "limit": 1, "known": b""})
MALFORMED: dict[str, bytes] = {
    "a limit of 0": encode({"after": 0, "limit": 0, "known": b""}),
    "a limit of 257": encode({"after": 0, "limit": MAX_GOSSIP + 1, "known": b""}),
    "a negative epoch": encode({"after": -1, "limit": 1, "known": b""}),
    "its fields in another order": encode({"limit": 1, "after": 0, "known": b""}),
    "another field": encode({"after": 0, "limit": 1, "known": b"", "more": 1}),
    "a field missing, as in version 1": encode({"after": 0, "limit": 1}),
    "half a digest": encode({"after": 0, "limit": 1, "known": b"\0"}),
    "a digest twice": encode({"after": 0, "limit": 1, "known": bytes(2 * DIGEST_BYTES)}),
    "a number in a longer form": _VALID.replace(b"\0", b"\xcc\0", 1),
    "a byte behind it": _VALID + b"\0",
    "more bytes than are allowed": bytes(MAX_GOSSIP_REQUEST_BYTES + 1),
    "nothing": b"",
}


async def _own_announcement(peer: Peer) -> Announcement:
    announcement = (await _all_gossip(peer)).get(author_of(peer.peer_id))
    if announcement is None:
        raise Untried("it announces nothing now")
    return announcement


async def _pulled(peer: Peer, offer: Offer) -> bytes:
    answer = await peer.ask(PULL_STREAM, offer.content_id, offer.size + 1)
    status, frame = decode_pull_response(answer)
    if status is not PullStatus.OK:
        raise Untried(f"it is asked for {offer.content_id.hex()} and answers {status.name}")
    require(content_id(frame) == offer.content_id, "the frame has another content id")
    return frame


async def _own_frames(peer: Peer) -> None:
    announcement = await _own_announcement(peer)
    if not announcement.offers:
        raise Untried("it offers no frame now")
    for offer in announcement.offers:
        frame = await _pulled(peer, offer)
        content = _valid("the frame", open_frame, frame, peer.swarm, peer.manifest)
        require(content.author == author_of(peer.peer_id), "the frame is another author's")
        actual = offer_of(frame, content.batch, peer.manifest)
        require(actual == offer, f"the offer says {offer}, the frame {actual}")


async def _own_profile(peer: Peer) -> None:
    try:
        answer = await peer.ask(PROFILE_STREAM, b"", MAX_PROFILE_RESPONSE_BYTES)
    except (Refused, PeerUnreachable):
        await peer.manifest_again()
        return
    author, _ = _valid("its profile", open_profile, answer, peer.swarm)
    require(author == author_of(peer.peer_id), "its profile is another author's")


async def _still_there(peer: Peer) -> None:
    try:
        await peer.manifest_again()
    except TransportError as error:
        raise Broken(f"after all of this it does not answer: {error}") from error


IDENTIFY, ROUTING = "/ipfs/id/1.0.0", "/ipfs/kad/1.0.0"
FIND_NODE = 4
_PUBLIC_KEY = bytes.fromhex("08011220")


async def _addresses(peer: Peer) -> list[str]:
    """Return the addresses in a peer's identify message, which must hold."""
    fields = await peer.message(IDENTIFY)
    key = fields.get(1, [b""])[-1]
    require(key == _PUBLIC_KEY + author_of(peer.peer_id), "identify gives another public key")
    names = [item for item in fields.get(3, []) if isinstance(item, bytes)]
    protocols = {item.decode(errors="replace") for item in names}
    missing = {IDENTIFY, MANIFEST_STREAM, PULL_STREAM, GOSSIP_STREAM} - protocols
    require(not missing, f"identify does not list {', '.join(sorted(missing))}")
    addresses = [address_of(item) for item in fields.get(2, []) if isinstance(item, bytes)]
    require(any(addresses), "identify lists no address")
    return list(filter(None, addresses))


async def _knows_addresses(peer: Peer) -> None:
    if all(map(is_relayed, await _addresses(peer))):
        raise Untried("others cannot dial it")
    target = decode_base58(Identity.generate().peer_id) or b""
    answer = await peer.message(ROUTING, protobuf.encode({1: FIND_NODE, 2: target}))
    kind = answer.get(1, [0])[-1]
    require(kind == FIND_NODE, f"the answer to FIND_NODE is of type {kind!r}")


async def _found_and_pulled(peer: Peer) -> None:
    """Play a member to which a bootstrap node passed on what identify says, and nothing else."""
    addresses = await _addresses(peer)
    async with peer.met_anew(addresses) as met:
        require(swarm_id(await met.manifest_again()) == peer.swarm, "it is of another swarm there")
        announcement = await _in_the_dht(met)
        if announcement.offers:
            await _pulled(met, announcement.offers[0])


async def _in_the_dht(peer: Peer) -> Announcement:
    """Return a peer's announcement, found in the DHT; it is gossiped before it is stored."""
    for _ in range(TRIES):
        announcement = await _own_announcement(peer)
        location = announcement.epoch, announcement.depth, announcement.shard
        if author_of(peer.peer_id) in await peer.transport.read(record_key(peer.swarm, *location)):
            return announcement
        await asyncio.sleep(AGAIN_SECONDS)
    raise Broken("its announcement is not found in the DHT")


@asynccontextmanager
async def _echo() -> AsyncIterator[int]:
    """Listen at a port that echoes all bytes, so it agrees to any protocol and proves no key."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 12):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "0.0.0.0", 0) as server:
        yield int(server.sockets[0].getsockname()[1])


async def _dials_back(peer: Peer) -> None:
    addresses = [address for address in peer.transport.addresses() if not is_relayed(address)]
    own_port = port_of(addresses[0]) if addresses else 0
    async with _echo() as port:
        ports = own_port or port, port
        request = encode_dial_back_request(ports)
        try:
            answer = await peer.ask(DIAL_BACK_STREAM, request, MAX_DIAL_BACK_RESPONSE_BYTES)
        except (Refused, PeerUnreachable) as error:
            await peer.manifest_again()
            raise Untried(f"it does not dial this client back: {error}") from error
        reply = _valid("the response", decode_dial_back_response, answer, ports)
        require(port not in reply.open, "it takes a port for open at which nothing proves a key")
        same_host = reply.host in map(host_of, addresses)
        require(not same_host or own_port in reply.open, f"port {own_port} is not open to it")
        refused = await peer.refuses(DIAL_BACK_STREAM, request)
        require(refused, "it dials a peer back again within five seconds")


MALFORMED_PORTS: dict[str, bytes] = {
    "no port": encode({"ports": []}),
    "five ports": encode({"ports": [4001] * 5}),
    "port 0": encode({"ports": [0]}),
    "port 65536": encode({"ports": [65536]}),
    "another field": encode({"ports": [4001], "host": "127.0.0.1"}),
    "a byte behind it": encode({"ports": [4001]}) + b"\0",
    "nothing": b"",
}


_malformed_gossip = partial(_refuses_all, protocol=GOSSIP_STREAM, requests=MALFORMED)
_malformed_ports = partial(_refuses_all, protocol=DIAL_BACK_STREAM, requests=MALFORMED_PORTS)

STREAM_CASES = (
    Case("10.5", "serves its manifest", _same_manifest),
    Case("10.8", "refuses a request for a manifest that is not empty", _manifest_of_something),
    Case("10.6", "answers a request with bytes behind it", _bytes_behind),
    Case("10.8", "closes a stream whose length is over the limit", _over_the_limit),
    Case("10.9", "closes a stream whose request does not come", _unfinished),
    Case("10.5", "closes the stream after its response", _once),
    Case("10.1", "opens no stream of a protocol that it does not know", _unknown_stream),
    Case("11.1", "answers that a frame is not there, or that it is busy", _unknown_frame),
    Case("10.8", "refuses content ids of another length", _odd_content_ids),
    Case("11.4", "gossips announcements that hold", _all_gossip),
    Case("11.2", "gossips no more records than asked for", lambda peer: _gossip(peer, 0, 1)),
    Case("11.2", "gossips only later time slots than it is asked for", _gossip_of_later_epochs),
    Case("11.2", "gossips nothing that the request says is known", _gossip_of_what_is_new),
    Case("11.2", "refuses malformed requests for gossip", _malformed_gossip),
    Case("8.3", "offers frames that match their offers", _own_frames),
    Case("16.5", "serves a profile that holds and is its own, or none", _own_profile),
    Case("10.2", "identifies with its key, addresses and streams", _addresses),
    Case("10.3", "answers FIND_NODE", _knows_addresses),
    Case("10.2", "is found and pulled from by a peer that knows its identify", _found_and_pulled),
    Case("14.1", "refuses malformed requests to dial back", _malformed_ports),
    Case("14.3", "dials back, and takes only its asker's port for open", _dials_back),
    Case("10.8", "still answers after all of this", _still_there),
)

CASES = (*RECORD_CASES, *STREAM_CASES)


async def look_at(address: str, folder: Path, over: str) -> list[CaseResult]:
    """Return the result of each case; arguments and errors as for ``meet``."""
    async with meet(address, folder, over) as peer:
        return [await find(case, peer) for case in CASES]
