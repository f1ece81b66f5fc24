"""A hostile peer that connects to nodes over libp2p and sends any yamux frames."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import place_of
from swarm.transport.libp2p.bridge import TrioThread
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.libp2p.stack import MUXER, SECURITY, propose
from swarm.transport.transport import HandlerLimits
from tests.swarm.transport.over import ECHO, LOOPBACK, be_patient, key_of

DEAF = "swarm-node/test/deaf"
DATA, WINDOW, SYN = 0, 1, 1


class Mallory:
    """A peer that completes the Noise handshake and then sends any yamux frames."""

    def __init__(self, address: str) -> None:
        self.place = place_of(address)
        self.peer = address.rpartition("/p2p/")[2]
        self.identity = Identity.generate()

    async def dial(self):
        import trio
        from libp2p.crypto.ed25519 import create_new_key_pair
        from libp2p.crypto.x25519 import create_new_key_pair as create_noise_keys
        from libp2p.io.trio import TrioTCPStream
        from libp2p.network.connection.raw_connection import RawConnection
        from libp2p.peer.id import ID
        from libp2p.security.noise.transport import Transport

        self.tcp = await trio.open_tcp_stream(self.place.host, self.place.port)
        raw = RawConnection(TrioTCPStream(self.tcp), initiator=True)
        await propose(raw.read, raw.write, SECURITY)
        keys = create_new_key_pair(self.identity.export()[4:36])
        noise = Transport(keys, create_noise_keys().private_key)
        secure = await noise.secure_outbound(raw, ID.from_string(self.peer))
        await propose(secure.read, secure.write, MUXER)
        return secure

    async def break_off(self) -> None:
        """Reset the connection without a close message."""
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.tcp.aclose()

    async def write_until_it_ends(self, frames: list[bytes]) -> None:
        """Send frames, then wait until the other side closes the connection."""
        import trio
        from libp2p.io.exceptions import IOException

        secure = await self.dial()
        with trio.fail_after(20.0):
            try:
                for frame in frames:
                    await secure.write(frame)
                while await secure.read(12):
                    pass
            except IOException:
                return


def frame(kind: int, flags: int, stream: int, length: int, data: bytes = b"") -> bytes:
    return struct.pack("!BBHII", 0, kind, flags, stream, length) + data


def line(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode() + b"\n"


@asynccontextmanager
async def against_anna(folder: Path, counters: Counters | None = None) -> AsyncIterator[tuple]:
    """Yield anna, ben and a thread for mallory; check that anna still serves ben."""

    async def echo(peer: str, request: bytes) -> bytes:
        return request

    with pytest.MonkeyPatch.context() as monkeypatch:
        be_patient(monkeypatch)
        transports = []
        for name, counted in (("anna", counters), ("ben", None)):
            key = key_of(folder, name)
            transports.append(Libp2pTransport(key, listen=LOOPBACK, counters=counted))
            transports[-1].use_validator(lambda record: True)
            transports[-1].handle(ECHO, echo, HandlerLimits(64, 8, 4))
            await transports[-1].start()
        anna, ben = transports
        thread = TrioThread("mallory")
        await thread.start()
        try:
            yield anna, ben, thread
            answer = await ben.request(anna.peer_id, ECHO, b"still", limit=9, deadline=60)
            assert answer == b"still"
        finally:
            await thread.stop()
            await asyncio.gather(anna.close(), ben.close())
