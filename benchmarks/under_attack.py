"""What an attacked node still does: honest calls answered, and the memory that the attack adds.

Starts a node and an honest caller on this machine, each with its own daemon, and lets attackers in
a process of their own loose on the node, one attack after the other. Run it in the root:

    python benchmarks/under_attack.py
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from output import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from protocol.messages import PULL_STREAM
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.subprocess.transport import SubprocessTransport
from swarm.transport.transport import TransportError
from tests.hostile.test_floods_over_daemons import memory, two, under
from tests.swarm.network_parts import Node

ATTACKS: dict[str, tuple[str, dict[str, float]]] = {
    "one peer opens 3,000 streams": ("half", {"keys": 1, "streams": 3000}),
    "one peer pulls at full rate": ("pulls", {"keys": 1, "streams": 32}),
    "one peer calls at full rate": ("calls", {"keys": 1, "streams": 1, "rate": 1 << 30}),
    "one peer never finishes a request": ("half", {"keys": 1, "streams": 4}),
    "eight keys never finish a request": ("half", {"keys": 8, "streams": 4}),
    "eight keys call at 1 MiB/s each": ("calls", {"keys": 8, "streams": 1, "rate": 1 << 20}),
}


async def calls(anna: Node, ben: Node, count: int) -> tuple[int, int, float]:
    """Pulls and DHT calls of ben that anna answered, and the median seconds of a pull."""
    from hivemind.p2p import PeerID

    assert isinstance(ben.transport, HivemindTransport)
    protocol = ben.transport.node.dht.protocol
    peer = PeerID.from_base58(anna.transport.peer_id)
    pulls = pings = 0
    took = []
    for _ in range(count):
        began = time.perf_counter()
        try:
            await ben.transport.request(
                anna.transport.peer_id, PULL_STREAM, os.urandom(32), limit=9, deadline=10
            )
            pulls += 1
        except TransportError:
            pass
        took.append(time.perf_counter() - began)
        pings += await protocol.call_ping(peer) is not None
        await asyncio.sleep(0.02)
    return pulls, pings, sorted(took)[count // 2]


async def measure(kind: str, options: dict[str, float], count: int) -> str:
    """One attack, on fresh nodes."""
    with tempfile.TemporaryDirectory() as folder:
        async with two(Path(folder), SubprocessTransport) as (anna, ben):
            await calls(anna, ben, 5)
            before = memory()
            async with under(kind, anna, **options):
                pulls, pings, median = await calls(anna, ben, count)
                added = (memory() - before) / 1e6
    return f"{pulls}/{count} pulls, {pings}/{count} calls, median {median:.3f} s, {added:+.0f} MB"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=50, help="honest ones, of each kind")
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {
        name: asyncio.run(measure(kind, attack, options.calls))
        for name, (kind, attack) in ATTACKS.items()
        if options.only in name
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
