"""Members over libp2p beside members over hivemind's daemon, in turns on this machine.

For each transport: the time from one node's outbox into another's pool (``latency.py``), how fast
frames are pulled, and what a node's network takes of the processor and of memory meanwhile, its
process and the daemon below it together. The network's process keeps within its share of the
machine, as it does beside a learner.

    python benchmarks/transports.py --turns 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from latency import measure

from protocol.identity import Identity
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.node_transport import NodeTransport
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import HandlerLimits

KINDS: dict[str, type[NodeTransport]] = {"hivemind": HivemindTransport, "libp2p": Libp2pTransport}
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
STREAM = "swarm-node/benchmark/blob"
MIB = 1 << 20


def networks() -> list[psutil.Process]:
    """The networks of all nodes, and their daemons."""
    below = psutil.Process().children(recursive=True)
    return [
        p for p in below if p.name() == "p2pd" or "swarm.transport.subprocess.child" in p.cmdline()
    ]


def used() -> float:
    """Processor seconds of all networks so far."""
    return sum(sum(process.cpu_times()[:2]) for process in networks())


async def shared(over: type[NodeTransport], nodes: int, groups: int) -> dict[str, float]:
    """A swarm that publishes one group at a time."""
    begun: list[float] = []

    def began() -> None:
        begun[:] = [time.monotonic(), used()]

    figures: dict[str, float] = {}

    async def watched(folder: Path) -> list[float]:
        work = asyncio.ensure_future(measure(nodes, groups, 2.0, folder, over, began))
        while not work.done():
            await asyncio.wait({work}, timeout=1.0)
            if begun and not work.done():
                seconds = time.monotonic() - begun[0]
                figures["cores"] = (used() - begun[1]) / seconds / (nodes + 1)
                resident = sum(process.memory_info().rss for process in networks())
                figures["mib"] = resident / MIB / (nodes + 1)
        return work.result()

    with tempfile.TemporaryDirectory() as folder:
        arrivals = await watched(Path(folder))
    return {**figures, "publish_to_pool_s": statistics.median(arrivals)}


async def pulled(over: type[NodeTransport], size: int, seconds: float) -> dict[str, float]:
    """One node that asks another for so many bytes again and again."""
    blob = os.urandom(size)

    async def give(peer: str, request: bytes) -> bytes:
        return blob

    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for name in ("giver", "taker"):
            Identity.create(Path(folder) / name)
            ends.append(SubprocessTransport(Path(folder) / name, listen=LISTEN, over=over))
        giver, taker = ends
        giver.handle(STREAM, give, HandlerLimits(1, 8, 8))
        try:
            await giver.start()
            await taker.start()
            peer = await taker.connect(giver.addresses()[0])
            began, count = time.monotonic(), 0
            while time.monotonic() < began + seconds:
                await taker.request(peer, STREAM, b"", limit=size, deadline=60)
                count += 1
            rate = count * size / (time.monotonic() - began)
        finally:
            await asyncio.gather(giver.close(), taker.close())
    return {"pull_mib_per_s": rate / MIB}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--groups", type=int, default=16, help="published one after the other")
    parser.add_argument("--bytes", type=int, default=500_000, help="of an answer that is pulled")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in KINDS}
    for turn in range(options.turns):
        for name in list(KINDS)[:: 1 if turn % 2 else -1]:
            found = asyncio.run(shared(KINDS[name], options.nodes, options.groups))
            found |= asyncio.run(pulled(KINDS[name], options.bytes, 10.0))
            rows[name].append(found)
    result = {
        name: {key: round(statistics.median(row[key] for row in of), 3) for key in of[0]}
        for name, of in rows.items()
    }
    ratio = result["libp2p"]["publish_to_pool_s"] / result["hivemind"]["publish_to_pool_s"]
    if options.json:
        print(json.dumps({**result, "publish_to_pool_ratio": round(ratio, 2)}))
        return
    for name, found in result.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items()))
    print(f"publish -> pool over libp2p: {ratio:.2f} x hivemind's")


if __name__ == "__main__":
    main()
