"""The peer under test, the client that queries it, and the types of test cases."""

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
LARGEST = 1 << 20  # maximum response bytes read if a refusal is expected


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer under test, its manifest, and the client's new identity and DHT id."""

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
        """Open a new stream to the peer, closed at the end."""
        reader, writer = await self.transport.node.open_stream(self.peer_id, protocol)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, protocol: str, request: bytes, limit: int) -> bytes:
        """Return the response to a request; raises ``TransportError``, also if closed."""
        async with self.stream(protocol) as (reader, writer):
            return await ask(reader, writer, request, peer=self.peer_id, limit=limit)

    async def refuses(self, protocol: str, request: bytes) -> bool:
        """Return whether the peer closes the stream but still answers valid requests.

        Raises ``TransportError`` if it does not answer those, so the result is unknown.
        """
        try:
            await self.ask(protocol, request, LARGEST)
        except (Refused, PeerUnreachable):
            await self.manifest_again()
            return True
        except TransportError:
            return False  # it answered, but too slowly or too long
        return False

    async def manifest_again(self) -> bytes:
        """Request the manifest, which every peer always answers.

        The request also ends the peer's refusal of a client that let it wait.
        """
        return await self.ask(MANIFEST_STREAM, b"", MAX_MANIFEST_RESPONSE_BYTES)

    async def call(self, name: str, fields: Mapping[int, Field | Sequence[Field]]) -> Fields:
        """Make a DHT call; raises ``TransportError``, or ``ValueError`` if not protobuf."""
        request = protobuf.encode(fields)
        answer = await self.transport.node.call(self.peer_id, f"DHTProtocol.{name}", request)
        return protobuf.decode(answer)


@asynccontextmanager
async def meet(address: str, folder: Path, over: str) -> AsyncIterator[Peer]:
    """Dial a peer's full multiaddress with a new key, kept in an empty ``folder``.

    Raises ``ConfigError`` if the transport is unusable, ``TransportError`` if the peer does not
    answer, ``ProtocolError`` if its manifest is invalid.
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
    """The peer violates the protocol; the message says how."""


class Untried(Exception):  # noqa: N818 - likewise
    """The case does not apply to this peer; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: ``says`` is the expected behavior in a protocol ``section``.

    ``look`` raises :class:`Broken` or :class:`Untried`.
    """

    section: int
    says: str
    look: Callable[[Peer], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case; ``found`` is the deviation or why it was skipped."""

    section: int
    says: str
    outcome: Outcome
    found: str = ""


async def find(case: Case, peer: Peer) -> CaseResult:
    """Run one case."""
    try:
        await case.look(peer)
    except Broken as broken:
        return CaseResult(case.section, case.says, "fail", str(broken))
    except Untried as untried:
        return CaseResult(case.section, case.says, "skip", str(untried))
    except TransportError as error:
        return CaseResult(case.section, case.says, "fail", f"{error.code}: {error}")
    return CaseResult(case.section, case.says, "ok")


def require(holds: bool, otherwise: str) -> None:
    """Raise :class:`Broken` with ``otherwise`` unless ``holds``."""
    if not holds:
        raise Broken(otherwise)
