"""Look for members by multicast DNS, as a node on the loopback network.

``python -m tests.swarm.lan.looking NAME SWARM`` also listens for dials. It prints its port and the
peers that answer its dials, one per line, and runs until standard input ends. It sends its peer id
to each peer that dials: the smallest transport with which nodes can find each other.
"""

import asyncio
import sys

from experiments.memory_transport import MemoryNetwork, MemoryTransport
from protocol.identity import Identity
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.lan import Discovery
from swarm.transport.transport import PeerUnreachable


class TcpTransport(MemoryTransport):
    """Dials by TCP, and accepts the received peer id without proof."""

    def __init__(self, peer_id: str) -> None:
        super().__init__(MemoryNetwork(SystemClock()), peer_id)
        self.port = 0
        self.met: set[str] = set()

    def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self.peer_id}",)

    def peers(self) -> tuple[str, ...]:
        return tuple(self.met)

    async def serve(self) -> asyncio.Server:
        """Send this node's peer id to every peer that dials."""

        async def send_id(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self.peer_id.encode())
            writer.close()

        server = await asyncio.start_server(send_id, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        print(f"at {self.port}", flush=True)
        return server

    async def connect(self, address: str) -> str:
        _, _, host, _, port, _, expected = address.split("/")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            told = (await reader.read()).decode()
            writer.close()
        except OSError as error:
            raise PeerUnreachable(str(error)) from error
        if told != expected:
            raise PeerUnreachable(f"{told} answers at {address}")
        self.met.add(told)
        print(f"met {told}", flush=True)
        return told


async def look(name: str, swarm: str) -> None:
    counters = Counters()
    transport = TcpTransport(Identity.from_seed(name.encode().ljust(32, b".")).peer_id)
    server = await transport.serve()
    discovery = Discovery(transport, ["/ip4/127.0.0.1/tcp/0"], SystemClock(), counters)
    running = asyncio.ensure_future(discovery.run(bytes.fromhex(swarm)))
    await asyncio.to_thread(sys.stdin.read)
    running.cancel()
    # A busy machine may exceed the time limit for leaving, which adds a counter.
    print(f"counted {counters.snapshot()}", flush=True)
    await discovery.close()
    server.close()


if __name__ == "__main__":
    asyncio.run(look(*sys.argv[1:]))
