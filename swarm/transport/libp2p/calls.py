"""DHT calls as in hivemind 1.1 (``docs/protocol.md``, "DHT"), and record storage."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from swarm.common.clock import Clock
from swarm.transport.libp2p.addresses import peer_id_bytes, peer_id_text
from swarm.transport.protobuf import Field, Fields, decode, doubles, encode, one, several, varints
from swarm.transport.records import DictionaryRecord
from swarm.transport.transport import Refused

PING, FIND, STORE = (f"DHTProtocol.rpc_{name}" for name in ("ping", "find", "store"))
CALL_ID_BYTES = 16
NODE_BYTES = 20
MOST_KEYS = 256  # maximum keys of a find and records of a store; a node that returns sends many

_NOT_FOUND, _DICTIONARY = 0, 2
_ERROR_BYTES = 200

Neighbour = tuple[bytes, str]  # (node id, peer id)


@dataclass(frozen=True, slots=True)
class Result:
    """A node's response for one key."""

    value: bytes | None  # packed dictionary of its records, None if there are none
    expiration: float  # latest of their expirations, unix seconds
    nearest: tuple[Neighbour, ...]  # known nodes nearest to the key, nearest first


def pack_call(
    peer: str, name: str, request: bytes, call_id: bytes | None = None
) -> tuple[bytes, bytes]:
    """Return the call id, drawn by default, and the encoded call."""
    call_id = call_id or secrets.token_bytes(CALL_ID_BYTES)
    body = encode({1: peer_id_bytes(peer), 2: name.encode(), 3: request})
    return call_id, encode({1: call_id, 3: body})


def open_call(data: bytes) -> tuple[bytes, bytes]:
    """Return the id and the request of a call; raises ``ValueError``."""
    fields = decode(data)
    return one(fields, 1), one(decode(one(fields, 3)), 3)


def pack_answer(call_id: bytes, response: bytes) -> bytes:
    return encode({1: call_id, 4: encode({1: response})})


def pack_error(call_id: bytes, reason: str) -> bytes:
    return encode({1: call_id, 4: encode({2: reason.encode()[:_ERROR_BYTES]})})


def open_answer(data: bytes, call_id: bytes) -> bytes:
    """Return a call's response; raises ``Refused`` or, if malformed, ``ValueError``."""
    fields = decode(data)
    response = decode(one(fields, 4))
    if one(fields, 1) != call_id:
        raise Refused("the answer is another call's")
    if error := one(response, 2):
        raise Refused(f"answered by an error: {error[:_ERROR_BYTES]!r}")
    return one(response, 1)


def pack_node(node_id: bytes) -> bytes:
    """Encode a node's id; a client has none."""
    return encode({1: node_id} if node_id else {})


def node_of(fields: Fields, number: int) -> bytes | None:
    """Return the sender's node id, None for a client, and for one of another length."""
    node_id = one(decode(one(fields, number)), 1)
    return node_id if len(node_id) == NODE_BYTES else None


def pack_results(results: Sequence[Result], node_id: bytes) -> bytes:
    return encode({2: [_pack_result(result) for result in results], 3: pack_node(node_id)})


def open_results(fields: Fields, keys: int, most: int) -> list[Result]:
    """Return the results of a find, with at most ``most`` neighbors per key."""
    results = [_open_result(decode(data), most) for data in several(fields, 2)]
    if len(results) != keys:
        raise ValueError(f"{len(results)} results for {keys} keys")
    return results


def pack_store(records: Sequence[DictionaryRecord], node_id: bytes) -> bytes:
    fields: Mapping[int, Field | Sequence[Field]] = {
        2: [record.key for record in records],
        3: [record.subkey for record in records],
        4: [record.value for record in records],
        5: [record.expiration_time for record in records],
        6: [False] * len(records),
        7: pack_node(node_id),
    }
    return encode(fields)


def open_store(fields: Fields) -> list[DictionaryRecord]:
    """Return the records of a store; raises ``ValueError``."""
    columns = several(fields, 2), several(fields, 3), several(fields, 4), doubles(fields.get(5, []))
    in_cache = varints(fields.get(6, []))
    if len(columns[0]) > MOST_KEYS or len({len(column) for column in (*columns, in_cache)}) != 1:
        raise ValueError("lists of different lengths, or too many records")
    if any(len(key) != NODE_BYTES for key in columns[0]):
        raise ValueError(f"a key is {NODE_BYTES} bytes")
    return [DictionaryRecord(*record) for record in zip(*columns, strict=True)]


def pack_stored(stored: Sequence[bool], node_id: bytes) -> bytes:
    return encode({2: list(stored), 3: pack_node(node_id)})


def open_stored(fields: Fields) -> list[bool]:
    """Return which records were stored."""
    return [bool(value) for value in varints(fields.get(2, []))]


def _pack_result(result: Result) -> bytes:
    fields: dict[int, Field | Sequence[Field]] = {
        4: [node for node, _ in result.nearest],
        5: [peer_id_bytes(peer) for _, peer in result.nearest],
    }
    if result.value is None:
        return encode(fields)
    return encode({1: _DICTIONARY, 2: result.value, 3: result.expiration, **fields})


def _open_result(fields: Fields, limit: int) -> Result:
    nodes, peers = several(fields, 4), several(fields, 5)
    if len(nodes) != len(peers) or any(len(node) != NODE_BYTES for node in nodes):
        raise ValueError("neighbours without an id or a peer")
    nearest = tuple(zip(nodes[:limit], map(peer_id_text, peers[:limit]), strict=True))
    if varints(fields.get(1, [_NOT_FOUND]))[-1:] != [_DICTIONARY]:
        return Result(None, 0.0, nearest)
    expirations = doubles(fields.get(3, []))
    return Result(one(fields, 2), expirations[-1] if expirations else 0.0, nearest)


class StoredValue(NamedTuple):
    """A value and its expiration, unix seconds."""

    value: Any
    expiration_time: float


class Dictionary(dict[bytes, StoredValue]):
    """Values by subkey, with the methods of hivemind's ``DictionaryDHTValue`` in use."""

    def __init__(self, limit: object = None) -> None:
        super().__init__()

    @property
    def latest(self) -> float:
        """The latest expiration; minus infinity if empty."""
        return max((entry.expiration_time for entry in self.values()), default=-math.inf)

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Do nothing: this class drops no entry by itself."""
        yield

    def store(self, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Store an entry; return False if the present one does not expire earlier."""
        previous = self.get(subkey)
        if previous is not None and previous.expiration_time >= expiration_time:
            return False
        self[subkey] = StoredValue(value, expiration_time)
        return True

    def forget(self, now: float) -> None:
        """Drop expired entries."""
        for subkey in [s for s, e in self.items() if e.expiration_time <= now]:
            del self[subkey]

    def packb(self) -> bytes:
        """Pack ``[inf, latest expiration, [[subkey, value, expiration], …]]`` (msgpack)."""
        entries = [[s, e.value, e.expiration_time] for s, e in self.items()]
        return bytes(msgpack.packb([math.inf, self.latest, entries]))


class Shelf:
    """Dictionaries by key, without expired records; wrapped by ``BoundedStorage``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._dictionaries: dict[bytes, Dictionary] = {}
        self._swept = 0

    def __len__(self) -> int:
        # At most once per second, because every stored record asks.
        if (now := int(self._clock.time())) != self._swept:
            self._swept = now
            self._sweep()
        return len(self._dictionaries)

    def __contains__(self, key: object) -> bool:
        return key in self._dictionaries

    def __delitem__(self, key: bytes) -> None:
        self._dictionaries.pop(key, None)

    def get(self, key: bytes) -> StoredValue | None:
        """Return the dictionary under a key and its latest expiration."""
        entry = self._dictionaries.get(key)
        if entry is not None:
            entry.forget(self._clock.time())
        return StoredValue(entry, entry.latest) if entry else None

    def items(self) -> list[tuple[bytes, StoredValue]]:
        """Return all keys with their dictionaries."""
        self._sweep()
        return [(key, StoredValue(item, item.latest)) for key, item in self._dictionaries.items()]

    def store_subkey(self, key: bytes, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Store a record; return False if it has expired or a later one is present."""
        if expiration_time <= self._clock.time():
            return False
        dictionary = self._dictionaries.setdefault(key, Dictionary())
        return dictionary.store(subkey, value, expiration_time)

    def _sweep(self) -> None:
        now = self._clock.time()
        for key, entry in list(self._dictionaries.items()):
            entry.forget(now)
            if not len(entry):
                del self._dictionaries[key]
