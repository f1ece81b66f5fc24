"""A peer that speaks Noise, and yamux as she likes, against nodes over libp2p."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import place_of
from swarm.transport.libp2p.bridge import TrioThread
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.libp2p.stack import MUXER, SECURITY, propose
from swarm.transport.transport import HandlerLimits
from tests.swarm.transport.over import ECHO, LOOPBACK, key_of, until

DEAF = "swarm-node/test/deaf"
DATA, WINDOW, SYN = 0, 1, 1


class Mallory:
    """A peer that speaks Noise, and yamux as she likes."""

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
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.tcp.aclose()

    async def write_until_it_ends(self, frames: Sequence[bytes]) -> None:
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


class Attack(AbstractAsyncContextManager):
    """Anna, a thread to attack her from, and ben, whom she still serves at the end."""

    def __init__(self, folder: Path) -> None:
        self.counters, self.thread = Counters(), TrioThread("mallory")
        counters = {"anna": self.counters, "ben": Counters()}
        self.anna, self.ben = (
            Libp2pTransport(key_of(folder, name), listen=LOOPBACK, counters=counted)
            for name, counted in counters.items()
        )

    async def __aenter__(self) -> Attack:
        async def echo(peer: str, request: bytes) -> bytes:
            return request

        for each in (self.anna, self.ben):
            each.use_validator(lambda record: True)
            each.handle(ECHO, echo, HandlerLimits(64, 8, 4))
            await each.start()
        await self.thread.start()
        self.address = self.anna.addresses()[0]
        await self.ben.connect(self.address)
        return self

    async def __aexit__(self, *failure: object) -> None:
        try:
            await self.ben_is_served()
        finally:
            await self.thread.stop()
            await asyncio.gather(self.anna.close(), self.ben.close())

    async def ben_is_served(self) -> None:
        answer = await self.ben.request(self.anna.peer_id, ECHO, b"still", limit=9, deadline=10)
        assert answer == b"still"

    async def writes(self, *frames: bytes) -> None:
        """Mallory's frames, until anna hangs up."""
        await self.thread.call(Mallory(self.address).write_until_it_ends, frames)

    async def counted(self, bound: str, least: int = 1) -> float:
        """Connections of which anna found one too many, at least so many, in the end."""
        name = f"connections_over_bound{{bound={bound}}}"
        await until(lambda: self.counters.snapshot().get(name, 0) >= least)
        await self.ben_is_served()
        return self.counters.snapshot()[name]
