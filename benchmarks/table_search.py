"""How many peers a search asks in tables too large to start, without a network.

hivemind's routing tables, one of each peer, and this project's searches in one process; an answer
comes at once. The peers join one after the other through the first, look for themselves and then
for keys, as in ``hash_table.py``, which counts the same with daemons up to where this machine ends.
Nobody fails.

    python benchmarks/table_search.py --nodes 32 128 1024 4096
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from dataclasses import dataclass, field
from typing import Any

from hivemind.dht.routing import DHTID, RoutingTable
from table_trace import FIND, Rpc, Trace

from swarm.common.counters import Counters
from swarm.transport.search import BUCKET, Search

DEPTH_MODULO = 5
"""As hivemind has it where nobody says otherwise."""

WARM_CALLS = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """A node of the table without its network."""

    uid: Any
    table: Any

    @classmethod
    def drawn(cls, rng: random.Random) -> Peer:
        uid = DHTID(rng.randrange(DHTID.MAX))
        return cls(uid, RoutingTable(uid, BUCKET, DEPTH_MODULO))

    def meet(self, other: Peer) -> None:
        """Remember a peer that called or answered; one that finds no place is not waited for."""
        self.table.add_or_update_node(other.uid, other.uid)
        bucket = self.table.buckets[self.table.get_bucket_index(other.uid)]
        bucket.nodes_requested_for_ping.clear()
        while len(bucket.replacement_nodes) > bucket.size:
            del self.table[next(iter(bucket.replacement_nodes))]

    def nearest(self, key: Any, asker: Any = None) -> list[Any]:
        return [uid for uid, _ in self.table.get_nearest_neighbors(key, BUCKET, exclude=asker)]


@dataclass(frozen=True, slots=True)
class Table:
    """All peers by their ids."""

    peers: dict[Any, Peer] = field(default_factory=dict)

    async def join(self, peer: Peer) -> None:
        """Meet the first peer and look for oneself."""
        if self.peers:
            first = next(iter(self.peers.values()))
            first.meet(peer)
            peer.meet(first)
        self.peers[peer.uid] = peer
        await self.search(peer, peer.uid)

    async def search(self, caller: Peer, key: Any) -> tuple[Trace, list[Any]]:
        """What a caller asks of others to find the peers nearest to a key, and these."""
        trace = Trace()

        async def ask(uid: Any) -> tuple[Any, list[tuple[Any, Any]]]:
            rpc = Rpc(FIND, uid.to_bytes(), 0, next(trace.events))
            trace.rpcs.append(rpc)
            asked = self.peers[uid]
            near = asked.nearest(key, caller.uid)
            asked.meet(caller)
            await asyncio.sleep(0)
            caller.meet(asked)
            rpc.ended = next(trace.events)
            return uid, [(each, each) for each in near]

        search = Search((caller.uid, caller.uid), key.xor_distance, ask, Counters())
        found = await search.nearest([(each, each) for each in caller.nearest(key)])
        return trace, [each for each, _ in found]


async def measure(nodes: int, calls: int, seed: int) -> dict[str, float]:
    """The means of one size of the table."""
    rng = random.Random(seed)
    table = Table()
    for _ in range(nodes):
        await table.join(Peer.drawn(rng))
    peers = list(table.peers.values())
    for _ in range(WARM_CALLS):
        for peer in peers:
            await table.search(peer, DHTID(rng.randrange(DHTID.MAX)))
    finds, hops, right = [], [], []
    for _ in range(calls):
        caller, key = rng.choice(peers), DHTID(rng.randrange(DHTID.MAX))
        trace, found = await table.search(caller, key)
        others = (uid for uid in table.peers if uid != caller.uid)
        true = sorted(others, key=key.xor_distance)[:5]
        finds.append(len(trace.rpcs))
        hops.append(trace.hops())
        right.append(len(set(true) & set(found)) / len(true))
    return {
        "nodes": nodes,
        "calls": calls,
        "finds": round(statistics.mean(finds), 2),
        "hops": round(statistics.mean(hops), 2),
        "nearest_found": round(statistics.mean(right), 4),
        "known": round(statistics.mean(len(p.table.peer_id_to_uid) for p in peers), 1),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[32, 128, 512, 2048])
    parser.add_argument("--calls", type=int, default=100, help="counted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for nodes in options.nodes:
        rows.append(asyncio.run(measure(nodes, options.calls, options.seed)))
        if not options.json:
            print(rows[-1], flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
