"""What a call of the hash table costs its caller, as the table grows.

Starts so many peers on this machine, each the whole transport of a member with a daemon of its own,
and has drawn ones store signed announcements and read keys under which there are none or some.
Counted is what a call sends and what comes back. Nothing is timed, so a busy machine does not
matter. Bytes are those of requests and answers, which is what a peer is charged for; on the wire
each has an envelope of some 100 bytes more.

- hops: requests one after the other on the path that a call's end waited for; hivemind has four
  under way at a time.
- depth: how many answers one upon the other a peer was learned by; 1 where all were known before.

    python benchmarks/hash_table.py --nodes 4 8 16 32 64 128 --json > table.json
    python benchmarks/hash_table.py --nodes 32 --savings
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
from collections.abc import Sequence
from typing import Any

from table_fit import show_fit
from table_peers import fill, patient, table
from table_records import Announcer, Shard
from table_savings import savings
from table_trace import FIND, STORE, Trace, traced

from swarm.transport.hivemind.transport import HivemindTransport

SIZES = (1, 16, 32, 64)
"""Records under a key, beside keys with none."""

FILLED_AT_ONCE = 16


class Measure:
    """Calls of drawn peers, and what they cost.

    Attributes:
        rows: what was counted, one for each kind of call, size of the table and of the key.
    """

    def __init__(self, peers: Sequence[HivemindTransport], announcer: Announcer, seed: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._peers = peers
        self._announcer = announcer
        self._rng = random.Random(seed)

    async def stored(self, shard: Shard, number: int) -> tuple[int, Trace]:
        """Store the record of an author of a shard; 1 where nobody took it."""
        author = shard.authors[number]
        value, expiry = self._announcer.record(shard, author)
        peer = self._rng.choice(self._peers)
        record = shard.key, author.author, value, expiry
        taken, trace = await traced(peer, lambda: peer.store(*record))
        shard.records[author.author] = len(value)
        return int(not taken), trace

    async def read(self, shard: Shard) -> tuple[int, Trace]:
        """Read a shard; how many of its records were missing."""
        peer = self._rng.choice(self._peers)
        found, trace = await traced(peer, lambda: peer.read(shard.key))
        return len(shard.records.keys() - found.keys()), trace

    async def fill(self, shard: Shard) -> None:
        """Store the records of all its authors but the first, a drawn peer for some at a time."""
        for begin in range(1, len(shard.authors), FILLED_AT_ONCE):
            authors = shard.authors[begin : begin + FILLED_AT_ONCE]
            await fill(self._rng.choice(self._peers), self._announcer, shard, authors)

    def note(self, call: str, shards: Sequence[Shard], size: int, done: list[Any]) -> None:
        """Add a row: means over calls for keys with ``size`` records."""
        traces = [trace for _, trace in done]
        stores = {
            "stores": [len(trace.of(STORE)) for trace in traces],
            "stores_out": [trace.bytes_out(STORE) for trace in traces],
            "stores_in": [trace.bytes_in(STORE) for trace in traces],
        }
        figures: dict[str, list[int]] = {
            "rpcs": [len(trace.rpcs) for trace in traces],
            "bytes_out": [trace.bytes_out() for trace in traces],
            "bytes_in": [trace.bytes_in() for trace in traces],
            "known": [len(trace.known) for trace in traces],
            "hops": [trace.hops() for trace in traces],
            "depth": [trace.depth() for trace in traces],
            "finds": [len(trace.of(FIND)) for trace in traces],
            **stores,
            "unanswered": [sum(rpc.answer is None for rpc in trace.rpcs) for trace in traces],
        }
        held = [length for shard in shards for length in shard.records.values()]
        self.rows.append(
            {
                "nodes": len(self._peers),
                "call": call,
                "records": size,
                "record_bytes": round(statistics.mean(held), 1) if held else 0,
                "dictionary_bytes": statistics.mean(s.bytes for s in shards) if size else 0,
                "calls": len(traces),
                "missing": sum(missing for missing, _ in done),
                **{name: round(statistics.mean(each), 3) for name, each in figures.items()},
            }
        )


async def measure(nodes: int, calls: int, keys: int, seed: int) -> list[dict[str, Any]]:
    """The rows of one size of the table, over so many keys of each number of records."""
    announcer = Announcer()
    all_shards = announcer.shards([0] * keys + [size for size in SIZES for _ in range(keys)])
    async with table(nodes, announcer.signed) as peers:
        work = Measure(peers, announcer, seed)
        empty, rest = all_shards[:keys], all_shards[keys:]
        done = [await work.read(empty[turn % keys]) for turn in range(calls)]
        work.note("read", empty, 0, done)
        work.note("store", rest, 0, [await work.stored(shard, 0) for shard in rest])
        for place, size in enumerate(SIZES):
            shards = rest[place * keys : (place + 1) * keys]
            for shard in shards:
                await work.fill(shard)
            done = [await work.read(shards[turn % keys]) for turn in range(calls)]
            work.note("read", shards, size, done)
            done = [await work.stored(shards[turn % keys], turn % size) for turn in range(calls)]
            work.note("store", shards, size, done)
    return work.rows


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--calls", type=int, default=20, help="of each kind, counted")
    parser.add_argument("--keys", type=int, default=5, help="of each number of records")
    parser.add_argument("--seed", type=int, default=0, help="of who calls")
    parser.add_argument("--savings", action="store_true", help="what calls could do without")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # hivemind leaves a task behind for each request of a search, and asyncio tells of every one.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    patient()
    rows: list[dict[str, Any]] = []
    for nodes in options.nodes:
        work = savings if options.savings else measure
        rows += asyncio.run(work(nodes, options.calls, options.keys, options.seed))
    if options.json:
        print(json.dumps(rows, indent=1))
    elif options.savings:
        for row in rows:
            print(row)
    else:
        show_fit(rows)


if __name__ == "__main__":
    main()
