"""DHT calls with the answers of one node, and author counts with their depths."""

import asyncio
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import msgpack

from experiments.virtual_clock import VirtualClock
from protocol.announcement import (
    depth_of,
    dht_key_of,
    reader_paths,
    record_key,
    shard_of,
    shard_on,
    sign_announcement,
)
from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.directory import ALL_DEPTHS, Density, Path, authors_along
from swarm.transport.libp2p import calls
from swarm.transport.libp2p.calls import FIND, PING, STORE
from swarm.transport.libp2p.dht import Libp2pDHT
from swarm.transport.protobuf import decode, encode
from swarm.transport.records import DictionaryRecord, RecordRule
from swarm.transport.request_limits import PeerLimits
from swarm.transport.streams import LENGTH_VARINT
from swarm.transport.transport import PeerUnreachable
from tests.protocol.samples import ALICE, BOB, EPOCH, MALLORY, MANIFEST, NOW, SIGNED, SWARM
from tests.protocol.samples import announcement as announced
from tests.protocol.views import in_swarm

NODE = bytes(range(200, 220))
CALL_ID = bytes(range(16))
ASKER = bytes(range(20))
LATER = 0.5
NEAR = [(bytes([number]) + bytes(19), f"near {number}") for number in (1, 64, 128, 255)]


def identity_of(name: str) -> Identity:
    return Identity.from_seed(sha256(name.encode()).digest())


def record_of(author: Identity, longer: float = 0.0, **changes: object) -> DictionaryRecord:
    """Return an author's announcement at depth 0 as a store holds it."""
    plain = announced(author, depth=0, shard=0, nonce=0, offers=())
    made = announced(author, depth=0, shard=0, offers=(), expiry=plain.expiry + longer, **changes)
    key = dht_key_of(record_key(SWARM, made.epoch, 0, 0))
    value = msgpack.packb(sign_announcement(made, author, SWARM))
    return DictionaryRecord(key, msgpack.packb(author.author), value, made.expiry)


def whole(
    records: Sequence[DictionaryRecord], head: tuple[float, float] | None = None
) -> DictionaryRecord:
    """Pack the records into one dictionary, after the two numbers of its ``head``."""
    latest = max(each.expiration_time for each in records)
    entries = [[msgpack.unpackb(r.subkey), r.value, r.expiration_time] for r in records]
    packed = msgpack.packb([*(head or (math.inf, latest)), entries])
    value = msgpack.packb(msgpack.ExtType(0x50, packed))
    return DictionaryRecord(records[0].key, b"", value, head[1] if head else latest)


def longer_heads(record: DictionaryRecord) -> DictionaryRecord:
    """Return the record with longer msgpack heads than necessary."""
    subkey, value = (msgpack.unpackb(each) for each in (record.subkey, record.value))
    packed = b"\xc5" + struct.pack(">H", len(subkey)) + subkey
    longer = b"\xc6" + struct.pack(">I", len(value)) + value
    return DictionaryRecord(record.key, packed, longer, record.expiration_time)


def stored(record: DictionaryRecord) -> list[object]:
    """Return a record as the vectors show it: key, subkey, value, expiration."""
    parts = record.key, record.subkey, record.value
    return [*(part.hex() for part in parts), record.expiration_time]


def request_of(name: str, fields: dict) -> bytes:
    """Encode the request that a vector's fields describe."""
    node = calls.pack_node(bytes.fromhex(fields["node_id"]))
    if name == PING:
        return encode({2: node, 3: fields["validate"]})
    if name == FIND:
        return encode({2: [bytes.fromhex(key) for key in fields["keys"]], 3: node})
    records = [
        DictionaryRecord(*map(bytes.fromhex, parts), until) for *parts, until in fields["records"]
    ]
    if fields.get("packed", True):
        return calls.pack_store(records, bytes.fromhex(fields["node_id"]))
    lists = {2: [r.key for r in records], 3: [r.subkey for r in records]}
    plain = b"".join(encode({5: record.expiration_time}) for record in records)
    plain += b"".join(encode({6: False}) for _ in records)
    return encode({**lists, 4: [r.value for r in records]}) + plain + encode({7: node})


def response_view(name: str, response: bytes, keys: int) -> dict:
    """Return a response as the vectors show it."""
    fields = decode(response)
    node = (calls.node_of(fields, 2 if name == PING else 3) or b"").hex()
    if name == PING:
        (clock,), (available,) = fields[4], fields[5]
        return {"node_id": node, "clock": clock, "available": bool(available)}
    if name == STORE:
        return {"node_id": node, "stored": calls.open_stored(fields)}
    results = [
        {
            "value": None if each.value is None else each.value.hex(),
            "expiration": each.expiration,
            "nearest": [[near.hex(), peer] for near, peer in each.nearest],
        }
        for each in calls.open_results(fields, keys, 20)
    ]
    return {"node_id": node, "results": results}


async def unframed(framed: bytes) -> bytes:
    """Return the message after its length prefix."""
    stream = asyncio.StreamReader()
    stream.feed_data(framed)
    stream.feed_eof()
    message = await stream.readexactly(await LENGTH_VARINT.size(stream))
    assert stream.at_eof()
    return message


def answered(name: str, call: bytes, vector: dict) -> dict:
    """Return the answer of the vectors' node to a call, and the records it then holds."""
    return asyncio.run(_answered(name, call, vector))


async def _answered(name: str, call: bytes, vector: dict) -> dict:
    async def ping_back(peer: str, asked: str, request: bytes) -> bytes:
        if asked != PING or vector["answers"] is None:
            raise PeerUnreachable("it does not answer")
        return encode({2: calls.pack_node(bytes.fromhex(vector["answers"])), 4: NOW})

    clock, counters = VirtualClock(NOW), Counters()
    node = Libp2pDHT(BOB.peer_id, ping_back, counters, PeerLimits(clock, counters), NODE)
    node.share.gate.check = RecordRule(SIGNED, clock, counters)
    for node_id, peer in vector["known"]:
        node.table.seen(bytes.fromhex(node_id), peer)
    for *parts, until in vector["held"]:
        assert node.share.keep(DictionaryRecord(*map(bytes.fromhex, parts), until))
    call_id, request = calls.open_call(await unframed(call))
    response = await node.answer(name, vector["peer"], request)
    answer = calls.pack_answer(call_id, response)
    keys = decode(request).get(2, []) if name == FIND else []
    held = [node.share.held(key) for key in node.share.held_keys()]
    await node.tasks.close()
    return {
        "answer": (LENGTH_VARINT.head(len(answer)) + answer).hex(),
        "response": response_view(name, response, len(keys)),
        "held": [stored(each) for each in held if each is not None],
    }


def called(name: str, call: str, fields: dict, named: str = BOB.peer_id, **changes: object) -> dict:
    """Make a call to a node with the given ``held``, ``known`` and ``answers``."""
    vector = {"peer": ALICE.peer_id, "known": [], "held": [], "answers": None, **changes}
    request = request_of(call, fields)
    _, message = calls.pack_call(named, call, request, CALL_ID)
    whole_call = LENGTH_VARINT.head(len(message)) + message
    expected = {"request": fields, **answered(call, whole_call, vector)}
    return {"name": name, "call": call, "input": whole_call.hex(), **vector, "expected": expected}


def dht() -> dict:
    """Calls to one node and their answers."""
    asker, client = ASKER.hex(), ""
    ours, renewed, theirs = record_of(ALICE), record_of(ALICE, LATER), record_of(MALLORY)
    elsewhere = record_of(MALLORY, epoch=EPOCH - 1)
    known = [[node.hex(), identity_of(peer).peer_id] for node, peer in NEAR]
    known.append([asker, ALICE.peer_id])
    prolonged = replace(theirs, expiration_time=theirs.expiration_time + 1)
    held = [stored(ours), stored(theirs)]

    def ping(name: str, node_id: str, validate: bool, answers: str | None = None) -> dict:
        return called(name, PING, {"node_id": node_id, "validate": validate}, answers=answers)

    def find(name: str, keys: Sequence[bytes], node_id: str = asker, **changes: object) -> dict:
        fields = {"node_id": node_id, "keys": [key.hex() for key in keys]}
        return called(name, FIND, fields, known=known, **changes)

    def store(name: str, records: Sequence[DictionaryRecord], **changes: object) -> dict:
        packed = {"packed": False} if changes.pop("unpacked", False) else {}
        fields = {"node_id": client, "records": [stored(each) for each in records], **packed}
        return called(name, STORE, fields, **changes)

    vectors = [
        ping("a ping", asker, False),
        ping("a client's ping", client, False),
        ping("a ping to be validated", asker, True, asker),
        ping("a ping to be validated, under another id", asker, True, NEAR[0][0].hex()),
        ping("a ping to be validated, unanswered", asker, True),
        ping("a client's ping to be validated", client, True, asker),
        find("nothing held", [ours.key]),
        find("two records held", [ours.key], held=held),
        find("two keys", [bytes(20), ours.key], held=held[:1]),
        find("a client's find", [ours.key], client),
        store("a record", [ours]),
        store("two records", [ours, theirs]),
        store("numbers not packed", [ours, theirs], unpacked=True),
        store("a record that ends later", [renewed], held=held),
        store("a record that is held", [ours], held=held),
        store("a record that ends earlier", [ours], held=[stored(renewed)]),
        store("one record that holds, one prolonged", [ours, prolonged]),
        store("a dictionary", [whole([ours, theirs])]),
        store("a dictionary with one record prolonged", [whole([ours, prolonged])]),
        store("a dictionary of which nothing holds", [whole([prolonged])]),
        store("a dictionary of which one record is held", [whole([ours, theirs])], held=held[:1]),
        store("a dictionary in another order", [whole([theirs, ours])]),
        store("a dictionary with other numbers in front", [whole([ours, theirs], (0.5, 1.5))]),
        store("a dictionary of two keys' records", [whole([ours, elsewhere])]),
        store("longer heads than necessary", [longer_heads(ours)]),
        store("a call that names another node", [ours], named=MALLORY.peer_id),
        store("no record", []),
    ]
    context = {**in_swarm(), "node_id": NODE.hex(), "peer_id": BOB.peer_id, "now": NOW}
    return {"context": context, "vectors": vectors}


SECRET = b"the reader's secret"


def author_key(number: int) -> bytes:
    return sha256(f"author {number}".encode()).digest()


def along(epoch: int, path: int, depths: Sequence[int], authors: int, swarms: float) -> dict:
    """Return the authors on a path, per depth, if the swarm has depth ``swarms``."""
    found: dict[int, list[int]] = {depth: [] for depth in depths}
    for number in range(authors):
        key = author_key(number)
        depth = depth_of(key, epoch, swarms)
        if depth in found and shard_of(key, epoch, depth) == shard_on(path, depth):
            found[depth].append(number)
    return found


def counted(density: Density, slot: dict) -> dict:
    """Let a reader count a slot as in a vector; return its depths from then on."""
    paths: list[Path] = [
        {int(depth): [author_key(n) for n in numbers] for depth, numbers in path.items()}
        for path in slot["found"]
    ]
    (density.sound if slot["full"] else density.count)(paths)
    ours = depth_of(ALICE.author, slot["epoch"], density.depth)
    return {
        "counts": [authors_along(path) for path in paths],
        "depth": density.depth,
        "reads": list(density.depths()),
        "announces": ours,
    }


def series(name: str, *turns: tuple[bool, int, float]) -> dict:
    """Make counts in consecutive slots; a turn is (full, authors, swarm depth)."""
    density, slots, expected = Density(), [], []
    for number, (full, authors, swarms) in enumerate(turns):
        epoch = EPOCH + number
        paths = reader_paths(ALICE.author, epoch - 1, SECRET)
        depths = ALL_DEPTHS if full else density.depths()
        found = [along(epoch - 1, path, depths, authors, swarms) for path in paths]
        kept = [{str(d): numbers for d, numbers in each.items() if numbers} for each in found]
        slot = {"epoch": epoch, "full": full, "paths": list(paths), "found": kept}
        slots.append(slot)
        expected.append(counted(density, slot))
    return {"name": name, "input": ALICE.author.hex(), "slots": slots, "expected": expected}


def made_up(name: str, *turns: tuple[bool, list[dict[str, list[int]]]]) -> dict:
    """Make counts of invented authors in consecutive slots."""
    slots = [
        {"epoch": EPOCH + number, "full": full, "paths": [0, 1 << 63], "found": found}
        for number, (full, found) in enumerate(turns)
    ]
    density = Density()
    expected = [counted(density, slot) for slot in slots]
    return {"name": name, "input": ALICE.author.hex(), "slots": slots, "expected": expected}


def counting() -> dict:
    """Return counts over several slots, and the depths that result."""
    deep = [{"12": list(range(20))}, {"12": list(range(40))}]
    near = {"1": list(range(10)), "2": list(range(10, 15))}
    far = {**near, "5": [15]}
    vectors = [
        series("alone", (True, 0, 0.0), (True, 1, 0.0)),
        series("a newcomer to 100 authors", (True, 100, 2.64), *[(False, 100, 2.64)] * 3),
        series("growth", (True, 15, 0.0), *[(False, 300, depth) for depth in (0.0, 1.0, 2.0, 3.0)]),
        series("a full count nearby", *[(False, 40, 0.5)] * 3, (True, 60, 1.5), (False, 60, 1.9)),
        series("a jump", *[(False, 8, 0.0)] * 3, (True, 400, 4.6), *[(False, 400, 4.6)] * 2),
        made_up("beyond depth 12", *[(full, deep) for full in (True, False)]),
        made_up("a third depth in a full count", (True, [near, near]), (True, [far, far])),
    ]
    context = {"manifest": SIGNED.hex(), "seconds": MANIFEST.epoch_seconds}
    return {"context": context, "vectors": vectors}
