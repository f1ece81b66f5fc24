"""What calls of the hash table could do without: fewer peers asked, keys asked for together.

Nothing of this is what the transport does. Beside each figure stands what it would give up: records
that a read did not find, and replicas of a store that are not among the nearest of all.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hivemind.dht.routing import DHTID
from table_peers import fill, table
from table_records import Announcer, Shard
from table_trace import STORE, Trace, traced

from swarm.transport.hivemind.transport import HivemindTransport

RECORDS = 32
TOGETHER = 4
BEAMS = (20, 10, 7, 5)
"""Nearest nodes that a search has to have asked."""

REPLICAS = 5


async def savings(nodes: int, calls: int, keys: int, seed: int) -> list[dict[str, Any]]:
    """A row for each way to read and to store, keys with ``RECORDS`` records under each."""
    announcer, rng = Announcer(), random.Random(seed)
    shards = announcer.shards([RECORDS] * max(keys, TOGETHER))
    async with table(nodes, announcer.signed) as peers:
        for shard in shards:
            await fill(rng.choice(peers), announcer, shard, shard.authors)
        rows = []
        for beam in BEAMS:
            pairs = [(rng.choice(peers), rng.choice(shards)) for _ in range(calls)]
            reads = [await traced(p, _reader(p, [s], beam_size=beam)) for p, s in pairs]
            rows.append(_row(nodes, f"read, beam {beam}", 1, reads))
        for beam in BEAMS:
            pairs = [(rng.choice(peers), rng.choice(shards)) for _ in range(calls)]
            stores = [await _stored(announcer, p, s, beam, rng) for p, s in pairs]
            row = _row(nodes, f"store, beam {beam}", 1, [(RECORDS, trace) for trace in stores])
            each = [_nearest(peers, *pair, t) for pair, t in zip(pairs, stores, strict=True)]
            row["nearest_replicas"] = round(statistics.mean(each), 3)
            rows.append(row)
        sets = [(rng.choice(peers), rng.sample(shards, TOGETHER)) for _ in range(calls)]
        together = [await traced(p, _reader(p, each)) for p, each in sets]
        rows.append(_row(nodes, f"read, {TOGETHER} keys together", TOGETHER, together))
    return rows


def _reader(
    peer: HivemindTransport, shards: Sequence[Shard], **search: int
) -> Callable[[], Awaitable[int]]:
    """Reads keys in one search; gives the number of records found."""

    async def read() -> int:
        keys = [shard.key for shard in shards]
        found = await peer.node.dht.get_many(keys, sufficient_expiration_time=math.nan, **search)
        return sum(len(value.value) for value in found.values() if value is not None)

    return read


async def _store(
    announcer: Announcer, peer: HivemindTransport, shard: Shard, number: int, **search: int
) -> None:
    author = shard.authors[number]
    value, expiry = announcer.record(shard, author)
    taken = await peer.node.dht.store(shard.key, value, expiry, subkey=author.author, **search)
    if not taken:
        raise RuntimeError(f"nobody took a record of {shard.key}: give the machine less to do")


async def _stored(
    announcer: Announcer, peer: HivemindTransport, shard: Shard, beam: int, rng: random.Random
) -> Trace:
    number = rng.randrange(RECORDS)
    _, trace = await traced(peer, lambda: _store(announcer, peer, shard, number, beam_size=beam))
    return trace


def _nearest(
    peers: Sequence[HivemindTransport], caller: HivemindTransport, shard: Shard, trace: Trace
) -> float:
    """Share of the nodes nearest to a key of all that a store reached."""
    key = DHTID.generate(shard.key)
    nearest = sorted(peers, key=lambda peer: key.xor_distance(peer.node.dht.node_id))[:REPLICAS]
    reached = {rpc.peer for rpc in trace.of(STORE)}
    reached.add(caller.node.dht.peer_id.to_bytes())
    return statistics.mean(peer.node.dht.peer_id.to_bytes() in reached for peer in nearest)


def _row(nodes: int, way: str, keys: int, done: Sequence[tuple[int, Trace]]) -> dict[str, Any]:
    """Means for each key."""
    traces = [trace for _, trace in done]
    return {
        "nodes": nodes,
        "call": way,
        "records": RECORDS,
        "calls": len(done),
        "rpcs": round(statistics.mean(len(t.rpcs) for t in traces) / keys, 2),
        "bytes_out": round(statistics.mean(t.bytes_out() for t in traces) / keys),
        "bytes_in": round(statistics.mean(t.bytes_in() for t in traces) / keys),
        "hops": round(statistics.mean(t.hops() for t in traces), 2),
        "found": round(statistics.mean(found for found, _ in done) / RECORDS / keys, 4),
    }
