"""Keys that claim a third party's addresses, and the dials of a node to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from swarm.common.clock import SystemClock
from swarm.transport.node_transport import NodeTransport
from swarm.transport.transport import PeerUnreachable
from tests.swarm.transport.over import ECHO, LOOPBACK, key_of, started, until

HOST, PORTS, KEYS = "127.0.0.2", 8, 5


class OneMinute(SystemClock):
    """A clock in which no minute ends."""

    def monotonic(self) -> float:
        return 0.0


@asynccontextmanager
async def third_party() -> AsyncIterator[tuple[list[int], list[int]]]:
    """Yield its ports, and the source port of each connection so far."""
    seen: list[int] = []

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[1])
        writer.close()

    servers = [await asyncio.start_server(on_connection, HOST, 0) for _ in range(PORTS)]
    try:
        yield [server.sockets[0].getsockname()[1] for server in servers], seen
    finally:
        for server in servers:
            server.close()


async def claim(kind: type, folder: Path, anna: NodeTransport, ports: list[int]) -> list[str]:
    """Let keys claim the ports, one after the other; return their peer ids."""
    keys = []
    for number in range(KEYS):
        claimed = [f"/ip4/{HOST}/tcp/{port}" for port in ports]
        key = key_of(folder, f"mallory {number}")
        async with started(kind(key, listen=LOOPBACK, announce=claimed)) as mallory:
            keys.append(mallory.peer_id)
            await mallory.connect(anna.addresses()[0])
            await until(lambda: keys[-1] in anna.peers())
            await asyncio.sleep(1.0)  # Mallory needs time to announce.
        await until(lambda: keys[-1] not in anna.peers())
    return keys


async def refused(anna: NodeTransport, peer: str) -> str:
    try:
        await anna.request(peer, ECHO, b"", limit=1, deadline=20)
    except PeerUnreachable as error:
        return str(error)
    return ""


async def start_again(kind: type[NodeTransport], folder: Path, cache: Path) -> None:
    """Run a node again for a while, whose cache lacks the third party's addresses."""
    assert HOST not in (cache.read_text() if cache.exists() else "")
    args = {"listen": LOOPBACK, "peer_cache": cache, "clock": OneMinute()}
    async with started(kind(key_of(folder, "anna"), **args)):
        await asyncio.sleep(3.0)
