"""``python -m tests.swarm.lan.looking NAME SWARM`` is a node on the loopback network that looks for
members by multicast DNS, and listens for their dials.

It prints its port and who answers where it dials, a line each, and goes on until standard input
ends. Whoever dials is told the name's peer id: a transport with as little in it as finding each
other needs.
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
    """Dials by TCP, and takes the peer id that it is told for proved."""

    def __init__(self, peer_id: str) -> None:
        super().__init__(MemoryNetwork(SystemClock()), peer_id)
        self.port = 0
        self.met: set[str] = set()

    def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self.peer_id}",)

    def peers(self) -> tuple[str, ...]:
        return tuple(self.met)

    async def serve(self) -> asyncio.Server:
        """Tell whoever dials who this is."""

        async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self.peer_id.encode())
            writer.close()

        server = await asyncio.start_server(tell, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        print(f"at {self.port}", flush=True)
        return server

    async def connect(self, address: str) -> str:
        _, _, host, _, port, _, wanted = address.split("/")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            told = (await reader.read()).decode()
            writer.close()
        except OSError as error:
            raise PeerUnreachable(str(error)) from error
        if told != wanted:
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
    # A busy machine may take too long to leave, which is counted.
    print(f"counted {counters.snapshot()}", flush=True)
    await discovery.close()
    server.close()


if __name__ == "__main__":
    asyncio.run(look(*sys.argv[1:]))
