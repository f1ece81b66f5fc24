"""The peer that is looked at, and how a bare client speaks to it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from node.config.registry import TRANSPORTS
from node.config.sections import NetworkSection
from node.errors import ConfigError
from node.network.transports import TransportKind
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import Manifest, open_manifest, swarm_id
from protocol.messages import MANIFEST_STREAM, MAX_MANIFEST_RESPONSE_BYTES
from swarm.common.counters import Counters
from swarm.exchange import fetch_manifest
from swarm.transport import protobuf
from swarm.transport.node_transport import NodeTransport
from swarm.transport.protobuf import Field, Fields
from swarm.transport.streams import ask
from swarm.transport.transport import PeerUnreachable, Refused, TransportError

LISTEN = ("/ip4/0.0.0.0/tcp/0",)
LARGEST = 1 << 20
"""Bytes of a response that is read where a refusal was due."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer under test.

    Attributes:
        peer_id: whom the address names.
        identity: the client's own, new for each test.
        manifest, swarm: what the peer hands out, opened, and the id that follows from it.
        node_id: the client's in the hash table.
    """

    peer_id: str
    identity: Identity
    transport: NodeTransport
    manifest: Manifest
    swarm: bytes
    node_id: bytes = field(default_factory=lambda: secrets.token_bytes(20))

    @asynccontextmanager
    async def stream(
        self, protocol: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A fresh stream to the peer, closed at the end."""
        reader, writer = await self.transport.node.open_stream(self.peer_id, protocol)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, protocol: str, request: bytes, limit: int) -> bytes:
        """One request and its response.

        Raises:
            TransportError: :class:`swarm.transport.transport.Refused` where the stream closed.
        """
        async with self.stream(protocol) as (reader, writer):
            return await ask(reader, writer, request, peer=self.peer_id, limit=limit)

    async def refuses(self, protocol: str, request: bytes) -> bool:
        """Whether the peer closes the stream where a response was due, and answers otherwise.

        Raises:
            TransportError: it does not answer what it has to either, so nothing follows from that.
        """
        try:
            await self.ask(protocol, request, LARGEST)
        except (Refused, PeerUnreachable):
            await self.manifest_again()
            return True
        except TransportError:
            return False  # it answered, slowly or at length
        return False

    async def manifest_again(self) -> bytes:
        """What every peer always answers; whoever let it wait is forgiven."""
        return await self.ask(MANIFEST_STREAM, b"", MAX_MANIFEST_RESPONSE_BYTES)

    async def call(self, name: str, fields: Mapping[int, Field | Sequence[Field]]) -> Fields:
        """A call of the hash table.

        Raises:
            TransportError: it was answered by an error, or not at all.
            ValueError: the answer is no protobuf.
        """
        request = protobuf.encode(fields)
        answer = await self.transport.node.call(self.peer_id, f"DHTProtocol.{name}", request)
        return protobuf.decode(answer)


@asynccontextmanager
async def meet(address: str, folder: Path, over: str) -> AsyncIterator[Peer]:
    """Dial a peer with a new key and take the manifest that it hands out.

    Args:
        over: the kind of transport to speak to it with, as ``network.transport`` names it.

    Raises:
        ConfigError: there is no such transport, or this machine has not what it needs.
        TransportError: it cannot be reached, or gives no manifest.
        ProtocolError: what it gives is none.
    """
    network = NetworkSection(transport=over, listen=LISTEN, relay="off")
    kind: TransportKind = TRANSPORTS.open(over, {})
    kind.check(network)
    thrown_away = RunFolder(folder)
    identity = Identity.create(thrown_away.identity)
    transport = kind.open(network, thrown_away, Counters(), beside=False)
    if not isinstance(transport, NodeTransport):
        raise ConfigError("network.transport", over, "Its streams cannot be spoken on bare.")
    transport.use_validator(lambda record: True)
    try:
        await transport.start()
        peer_id = await transport.connect(address)
        signed = await fetch_manifest(transport, peer_id)
        yield Peer(peer_id, identity, transport, open_manifest(signed), swarm_id(signed))
    finally:
        await transport.close()


Outcome = Literal["ok", "fail", "skip"]


class Broken(Exception):  # noqa: N818 - a finding, not a fault of this program
    """The peer does something else than the protocol says; the text tells what."""


class Untried(Exception):  # noqa: N818 - likewise
    """The case cannot be tried on this peer; the text tells why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to look at.

    Attributes:
        section: of ``docs/protocol.md``.
        says: what the peer does, as a sentence about it.
        look: finds out; raises :class:`Broken` or :class:`Untried`.
    """

    section: int
    says: str
    look: Callable[[Peer], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a case.

    Attributes:
        found: what the peer did instead, or why it was not tried; empty where all is well.
    """

    section: int
    says: str
    outcome: Outcome
    found: str = ""


async def find(case: Case, peer: Peer) -> Finding:
    """Look at one case."""
    try:
        await case.look(peer)
    except Broken as broken:
        return Finding(case.section, case.says, "fail", str(broken))
    except Untried as untried:
        return Finding(case.section, case.says, "skip", str(untried))
    except TransportError as error:
        return Finding(case.section, case.says, "fail", f"{error.code}: {error}")
    return Finding(case.section, case.says, "ok")


def require(holds: bool, otherwise: str) -> None:
    """Raise :class:`Broken` with ``otherwise`` unless it holds."""
    if not holds:
        raise Broken(otherwise)
