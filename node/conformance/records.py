"""Conformance tests of a peer's DHT node."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgpack

from node.conformance.peer import Broken, Case, Peer, Untried, require
from protocol.announcement import (
    CLOCK_SKEW,
    Announcement,
    dht_key_of,
    epoch_of,
    record_key,
    shard_of,
    sign_announcement,
)
from protocol.identity import Identity
from protocol.manifest import AllowList, ProofOfWork, find_nonce
from swarm.transport.protobuf import Field, Fields, decode, encode, varints
from swarm.transport.transport import TransportError

NODE_BYTES = 20
BUCKET = 20
DICTIONARY_CODE = 0x50
MOST_WORK = 20  # maximum bits of proof of work computed for a test, about a second
_NOT_FOUND, _DICTIONARY = 0, 2


async def _ping(peer: Peer) -> None:
    answer = await _call(peer, "rpc_ping", {2: _node(peer), 3: False})
    (node,) = decode(_bytes(answer, 2)).get(1, [b""])
    if not node:
        raise Untried("it is a client of the DHT")
    size = len(node) if isinstance(node, bytes) else 0
    require(size == NODE_BYTES, f"its node id has {size} bytes")
    (clock,) = answer.get(4, [0.0])
    require(isinstance(clock, float), "its clock is not a double")
    offset = float(clock) - time.time()
    require(abs(offset) <= CLOCK_SKEW, f"its clock is {offset:+.1f} s off this machine's")


async def _available(peer: Peer) -> None:
    node = encode({1: peer.transport.node.hash_table.node_id})
    cases: dict[str, tuple[dict[int, Field], bool]] = {
        "validates a node that answers": ({2: node, 3: True}, True),
        "validates a node id that is not the asker's": ({2: _node(peer), 3: True}, False),
        "validates a client": ({3: True}, False),
        "validates nothing": ({2: node, 3: False}, False),
    }
    for label, (request, expected) in cases.items():
        answer = await _call(peer, "rpc_ping", request)
        available = varints(answer.get(5, [0]))[-1:] == [1]
        require(available == expected, f"to a ping that {label} it answers available = {available}")


async def _absent(peer: Peer) -> None:
    result = await _find(peer, secrets.token_bytes(NODE_BYTES), {3: _node(peer)})
    require(_enum(result) == _NOT_FOUND, "it finds a key that was drawn at random")
    _neighbours(result)


async def _never_the_asker(peer: Peer) -> None:
    await _call(peer, "rpc_ping", {2: _node(peer)})
    result = await _find(peer, peer.node_id, {3: _node(peer)})
    require(peer.node_id not in _neighbours(result), "it lists the asker")


async def _clients(peer: Peer) -> None:
    _neighbours(await _find(peer, secrets.token_bytes(NODE_BYTES), {}))


async def _several(peer: Peer) -> None:
    keys = [secrets.token_bytes(NODE_BYTES) for _ in range(3)]
    answer = await _call(peer, "rpc_find", {2: keys})
    count = len(answer.get(2, []))
    require(count == len(keys), f"{count} results for {len(keys)} keys")


async def _stores(peer: Peer) -> None:
    record, key, expiry = _announced(peer)
    await _stored(peer, key, record, expiry)
    records = await _records(peer, key)
    require(peer.identity.author in records, "what it stored is not to be found")
    value, end = records[peer.identity.author]
    require(value == record, "it gives other bytes than it was given")
    require(end == expiry, f"expiration {expiry!r} became {end!r}")


async def _renews(peer: Peer) -> None:
    slot = epoch_of(time.time(), peer.manifest.epoch_seconds)
    first, key, expiry = _announced(peer, epoch=slot)
    later, _, end = _announced(peer, epoch=slot, longer=0.5)
    await _store(peer, key, first, expiry)
    await _stored(peer, key, later, end)
    require(await _store(peer, key, first, expiry) != [1], "it stores one that ends earlier")
    value, _ = (await _records(peer, key)).get(peer.identity.author, (b"", 0.0))
    require(value == later, "the record that ends earlier is there")


async def _unpacked(peer: Peer) -> None:
    record, key, expiry = _announced(peer, longer=0.6)
    fields = {2: [key], 3: [_packed(peer.identity.author)], 4: [_packed(record)]}
    request = encode(fields) + encode({5: expiry}) + encode({6: False})
    reply = varints((await peer.call("rpc_store", request)).get(2, []))
    require(reply == [1], f"asked to store a record with numbers not packed, it answers {reply}")


async def _whole_dictionary(peer: Peer) -> None:
    record, key, expiry = _announced(peer, longer=0.7)
    for end, expected in {expiry: [1], expiry + 60.0: [0]}.items():
        entries = [[peer.identity.author, _packed(record), end]]
        payload = msgpack.packb([math.inf, end, entries])
        value = msgpack.packb(msgpack.ExtType(DICTIONARY_CODE, payload))
        reply = await _taken(peer, key, b"", value, end)
        verb = "holds" if expected == [1] else "does not hold"
        require(reply == expected, f"to a dictionary whose record {verb} it answers {reply}")


async def _refuses(peer: Peer) -> None:
    author = peer.identity.author
    record, key, expiry = _announced(peer)
    epoch = epoch_of(time.time(), peer.manifest.epoch_seconds)
    future, future_key, future_end = _announced(peer, epoch=epoch + 2)
    past, past_key, past_end = _announced(peer, epoch=max(0, epoch - 4))
    other = Identity.generate()
    corrupted = record[:-1] + bytes([record[-1] ^ 1])
    cases: dict[str, tuple[bytes, bytes, bytes, float]] = {
        "under another author's name": (key, _packed(other.author), _packed(record), expiry),
        "in another place": (bytes(20), _packed(author), _packed(record), expiry),
        "prolonged": (key, _packed(author), _packed(record), expiry + 60.0),
        "with a bit flipped": (key, _packed(author), _packed(corrupted), expiry),
        "of an epoch ahead": (future_key, _packed(author), _packed(future), future_end),
        "of an epoch gone by": (past_key, _packed(author), _packed(past), past_end),
        "of 5,000 bytes": (key, _packed(author), _packed(record + bytes(5000)), expiry),
        "that is a number": (key, _packed(author), msgpack.packb(1), expiry),
        "without a subkey": (key, msgpack.packb(None), _packed(record), expiry),
        "under a text": (key, msgpack.packb(author.hex()), _packed(record), expiry),
        "without an end": (key, _packed(author), _packed(record), math.inf),
        "nested": (key, _packed(author), b"\x91" * 100_000, expiry),
    }
    for label, args in cases.items():
        try:
            reply = await _taken(peer, *args)
        except TransportError:
            continue  # an error is a refusal, too
        require(not any(reply), f"it stores a record {label}")


async def _uneven(peer: Peer) -> None:
    record, key, expiry = _announced(peer)
    fields = {2: [key] * 3, 3: [_packed(peer.identity.author)], 4: [_packed(record)]}
    with suppress(TransportError, Broken):
        await _call(peer, "rpc_store", {**fields, 5: [expiry], 6: [False] * 3})
    for name in ("rpc_ping", "rpc_find", "rpc_store"):
        with suppress(TransportError, Broken):
            await peer.call(name, b"\xff" * 64)
    await _ping(peer)


def _announced(
    peer: Peer, *, epoch: int | None = None, longer: float = 0.0
) -> tuple[bytes, bytes, float]:
    """Return an empty announcement, its key and expiration; raises :class:`Untried`."""
    rule, seconds = peer.manifest.admission, peer.manifest.epoch_seconds
    if isinstance(rule, AllowList):
        raise Untried("the swarm has an allow list, and this client is not on it")
    if isinstance(rule, ProofOfWork) and rule.bits > MOST_WORK:
        raise Untried(f"the swarm asks for {rule.bits} bits of work")
    slot = epoch_of(time.time(), seconds) if epoch is None else epoch
    author = peer.identity.author
    announcement = Announcement(
        epoch=slot,
        depth=0,
        shard=shard_of(author, slot, 0),
        sequence=time.time_ns() // 1000,
        policy_step=0,
        expiry=(slot + 2 + longer) * seconds,
        nonce=find_nonce(rule, peer.swarm, author),
        offers=(),
    )
    key = record_key(peer.swarm, slot, announcement.depth, announcement.shard)
    signed = sign_announcement(announcement, peer.identity, peer.swarm)
    return signed, dht_key_of(key), announcement.expiry


async def _stored(peer: Peer, key: bytes, record: bytes, expiry: float) -> None:
    reply = await _store(peer, key, record, expiry)
    require(reply == [1], f"asked to store a record that holds, it answers {reply}")


async def _store(peer: Peer, key: bytes, record: bytes, expiry: float) -> list[int]:
    return await _taken(peer, key, _packed(peer.identity.author), _packed(record), expiry)


async def _taken(peer: Peer, key: bytes, subkey: bytes, value: bytes, expiry: float) -> list[int]:
    """Ask the peer to store one value; return what it answers."""
    fields = {2: [key], 3: [subkey], 4: [value]}
    answer = await _call(peer, "rpc_store", {**fields, 5: [expiry], 6: [False]})
    return varints(answer.get(2, []))


async def _find(peer: Peer, key: bytes, sender: Mapping[int, Field]) -> Fields:
    answer = await _call(peer, "rpc_find", {2: [key], **sender})
    results = answer.get(2, [])
    require(len(results) == 1, f"{len(results)} results for one key")
    return decode(_bytes(answer, 2))


async def _records(peer: Peer, key: bytes) -> dict[bytes, tuple[bytes, float]]:
    """Return the records that the peer holds under a key, by author."""
    result = await _find(peer, key, {})
    require(_enum(result) == _DICTIONARY, f"the result is of kind {_enum(result)}, 2 was due")
    try:
        extension = msgpack.unpackb(_bytes(result, 2), strict_map_key=False)
        require(extension.code == DICTIONARY_CODE, f"msgpack extension {extension.code}")
        _, _, entries = msgpack.unpackb(extension.data)
        records = {author: (msgpack.unpackb(value), expiry) for author, value, expiry in entries}
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise Broken(f"its dictionary cannot be read: {error!r}") from error
    return records


def _neighbours(result: Fields) -> list[bytes]:
    """Return the node ids in a result, which must hold."""
    nodes, peers = ([item for item in result.get(n, []) if isinstance(item, bytes)] for n in (4, 5))
    require(len(nodes) == len(peers), f"{len(nodes)} node ids beside {len(peers)} PeerIDs")
    require(len(nodes) <= BUCKET, f"it lists {len(nodes)} nodes")
    lengths = {len(node) for node in nodes}
    require(lengths <= {NODE_BYTES}, f"node ids of {sorted(lengths)} bytes")
    return nodes


async def _call(peer: Peer, name: str, fields: Mapping[int, Field | Sequence[Field]]) -> Fields:
    return await peer.call(name, encode(fields))


def _node(peer: Peer) -> bytes:
    return encode({1: peer.node_id})


def _packed(value: bytes) -> bytes:
    return bytes(msgpack.packb(value, use_bin_type=True))


def _bytes(fields: Fields, number: int) -> bytes:
    """Return a bytes field; empty if it is missing."""
    (first, *_) = fields.get(number, [b""])
    if not isinstance(first, bytes):
        raise Broken(f"field {number} is {first!r}, not bytes")
    return first


def _enum(result: Fields) -> int:
    return varints(result.get(1, [0]))[0]


RECORD_CASES = (
    Case("12.7", "answers a ping with its node id and a clock that agrees", _ping),
    Case("12.9", "says available to a node that answers its ping, and to no other", _available),
    Case("12.10", "finds nothing where nothing is, and lists neighbors", _absent),
    Case("12.10", "never lists the asker", _never_the_asker),
    Case("12.8", "serves clients, which have no node id", _clients),
    Case("12.7", "answers several keys in their order", _several),
    Case("12.11", "stores a record and returns it bit for bit", _stores),
    Case("12.3", "replaces a record by one that ends later, and by no other", _renews),
    Case("12.6", "reads repeated numbers that are not packed", _unpacked),
    Case("12.12", "stores a whole dictionary with one result", _whole_dictionary),
    Case("12.2", "stores no record that does not hold", _refuses),
    Case("12.13", "survives malformed calls", _uneven),
)
