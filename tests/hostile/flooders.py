"""Peers that flood a node over real p2p daemons, in a process of their own.

    python -m tests.hostile.flooders KIND ADDRESS --keys 8 --streams 4 --seconds 10

It prints ``ready`` when the flood begins and a summary at the end. Kinds: ``half`` opens streams
without a request (slow sam). ``pulls`` requests missing frames without a pause. ``calls`` floods
the DHT at a given rate (flo). ``unread`` sends requests and never reads the answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from struct import pack
from typing import Any

from protocol.identity import Identity
from protocol.messages import GOSSIP_STREAM, PULL_STREAM
from swarm.common.counters import Counters
from swarm.transport.hivemind.node import HivemindNode
from swarm.transport.hivemind.transport import import_network
from swarm.transport.node import NodeSettings
from swarm.transport.transport import TransportError

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
CALL_BYTES = 4096


class Flooder:
    """One key with its own daemon."""

    def __init__(self, node: HivemindNode, peer: str) -> None:
        self.done: Counter[str] = Counter()
        self._node = node
        self._peer = peer

    @classmethod
    async def start(cls, folder: Path, number: int, address: str) -> Flooder:
        key = folder / f"{number}.key"
        Identity.create(key)
        node = await HivemindNode.start(NodeSettings(key, LISTEN, (), 60.0), Counters())
        await node.connect(address)
        return cls(node, address.rpartition("/p2p/")[2])

    async def half(self) -> None:
        """Hold one stream open without a request until the node closes it."""
        async with self._stream(PULL_STREAM) as (reader, _):
            self.done["opened"] += 1
            await reader.read(1)

    async def pulls(self) -> None:
        async with self._stream(PULL_STREAM) as (reader, writer):
            writer.write(pack(">I", 32) + os.urandom(32))
            answer = await reader.read(5)
            self.done["answered" if answer else "refused"] += 1

    async def unread(self) -> None:
        async with self._stream(GOSSIP_STREAM) as (_, writer):
            writer.transport.pause_reading()
            writer.write(pack(">I", 0))
            self.done["opened"] += 1
            await asyncio.sleep(20)

    @asynccontextmanager
    async def _stream(self, protocol: str) -> AsyncIterator[Any]:
        reader, writer = await self._node.open_stream(self._peer, protocol)
        with closing(writer):
            yield reader, writer

    async def again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(TransportError, OSError, EOFError):
                await work()
                continue
            self.done["failed"] += 1
            await asyncio.sleep(0.1)

    async def calls(self, rate: float) -> None:
        """Call the DHT at ``rate`` bytes per second over all streams of this key."""
        from hivemind.p2p import PeerID

        peer = PeerID.from_base58(self._peer)
        began = time.monotonic()
        while True:
            ahead = self.done["bytes"] / rate - (time.monotonic() - began)
            await asyncio.sleep(max(0.0, ahead))
            self.done["bytes"] += CALL_BYTES
            control: Any = self._node.control
            try:
                async with asyncio.timeout(5):
                    await control.call_unary_handler(peer, "DHTProtocol.rpc_ping", filling())
                self.done["answered"] += 1
            except Exception:  # noqa: BLE001
                self.done["refused"] += 1
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self._node.stop()


def filling() -> bytes:
    """Return a ping that hivemind decodes, padded with an unknown field."""
    body = os.urandom(CALL_BYTES - 8)
    size = len(body)
    return b"\x7a" + bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14)) + body


async def attack(options: argparse.Namespace, folder: Path) -> Counter[str]:
    starting = [Flooder.start(folder, n, options.address) for n in range(options.keys)]
    flooders = await asyncio.gather(*starting)
    tasks = [
        asyncio.ensure_future(
            each.calls(options.rate)
            if options.kind == "calls"
            else each.again_and_again(getattr(each, options.kind))
        )
        for each in flooders * options.streams
    ]
    print("ready", flush=True)
    await asyncio.wait(tasks, timeout=options.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(flooder.stop() for flooder in flooders))
    return sum((flooder.done for flooder in flooders), Counter())


@contextmanager
def attacking(kind: str, address: str, **options: float) -> Iterator[subprocess.Popen[str]]:
    """Attack the node at ``address`` while the block runs."""
    command = [sys.executable, "-m", "tests.hostile.flooders", kind, address]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("half", "pulls", "calls", "unread"))
    parser.add_argument("address")
    parser.add_argument("--keys", type=int, default=1)
    parser.add_argument("--streams", type=int, default=4, help="at a time, of each key")
    parser.add_argument("--rate", type=float, default=float(1 << 18), help="bytes/s of each stream")
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    import_network()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(attack(options, Path(folder)))))


if __name__ == "__main__":
    main()
