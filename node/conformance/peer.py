"""The peer under test, the client that tests it, and cases with their results."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from swarm.transport.node import StreamEnds
from swarm.transport.node_transport import NodeTransport
from swarm.transport.protobuf import Fields, decode
from swarm.transport.streams import LENGTH_VARINT, ask
from swarm.transport.transport import PeerUnreachable, Refused, TransportError, is_relayed

LISTEN = ("/ip4/0.0.0.0/tcp/0",)
LARGEST = 1 << 20  # maximum response bytes read if a refusal is expected
MESSAGE_SECONDS = 6.0

Client = AbstractAsyncContextManager[tuple[Identity, NodeTransport]]  # started, with a new key


class Sent(NamedTuple):
    """Bytes that a case sent: a stream's name and a piece of it, or a call and its request."""

    stream: str
    data: bytes


class _Noted:
    """A writer whose bytes are noted in ``sent``."""

    def __init__(self, writer: asyncio.StreamWriter, protocol: str, sent: list[Sent]) -> None:
        self._writer = writer
        self._protocol = protocol
        self._sent = sent

    def write(self, data: bytes) -> None:
        self._sent.append(Sent(self._protocol, bytes(data)))
        self._writer.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer under test, its manifest, and a client with its own identity and DHT id.

    ``new_client`` opens another client; ``sent`` is what the running case has sent so far.
    ``in_dht`` is false if the peer is a client of the DHT because others cannot dial it.
    """

    peer_id: str
    identity: Identity
    transport: NodeTransport
    manifest: Manifest
    swarm: bytes
    new_client: Callable[[], Client]
    in_dht: bool = True
    node_id: bytes = field(default_factory=lambda: secrets.token_bytes(20))
    sent: list[Sent] = field(default_factory=list)

    @asynccontextmanager
    async def stream(self, protocol: str) -> AsyncIterator[StreamEnds]:
        """Open a new stream to the peer, closed at the end."""
        reader, writer = await self.transport.node.open_stream(self.peer_id, protocol)
        recorder: Any = _Noted(writer, protocol, self.sent)
        with closing(writer):
            yield reader, recorder

    async def call(self, name: str, request: bytes) -> Fields:
        """Return the fields of the response to a DHT call; raises ``TransportError``."""
        if not self.in_dht:
            raise Untried("it is a client of the DHT")
        self.sent.append(Sent(f"DHTProtocol.{name}", request))
        answer = await self.transport.node.call(self.peer_id, f"DHTProtocol.{name}", request)
        try:
            return decode(answer)
        except (ValueError, struct.error) as error:
            raise Broken(f"the answer to {name} is not protobuf: {error}") from error

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

    async def message(self, protocol: str, request: bytes | None = None) -> Fields:
        """Return the fields of a protobuf message of libp2p; raises ``TransportError``."""
        async with self.stream(protocol) as (reader, writer):
            try:
                async with asyncio.timeout(MESSAGE_SECONDS):
                    if request is not None:
                        writer.write(LENGTH_VARINT.head(len(request)) + request)
                    size = await LENGTH_VARINT.size(reader)
                    return decode(await reader.readexactly(min(size, LARGEST)))
            except (OSError, EOFError, ValueError) as error:
                raise Broken(f"no message on {protocol}: {error!r}") from error

    @asynccontextmanager
    async def met_anew(self, addresses: Sequence[str]) -> AsyncIterator[Peer]:
        """Meet the same peer with another new key, at the first address that leads to it."""
        async with self.new_client() as (identity, transport):
            errors = []
            for address in addresses:
                try:
                    await _connect(transport, f"{address}/p2p/{self.peer_id}")
                except TransportError as error:
                    errors.append(f"{address}: {error}")
                else:
                    yield replace(self, identity=identity, transport=transport)
                    return
            raise Broken(f"no address that it gives leads to it: {'; '.join(errors)}")

    async def manifest_again(self) -> bytes:
        """Request the manifest, which also ends the peer's refusal of a slow client."""
        return await self.ask(MANIFEST_STREAM, b"", MAX_MANIFEST_RESPONSE_BYTES)


@asynccontextmanager
async def meet(address: str, folder: Path, over: str) -> AsyncIterator[Peer]:
    """Dial a peer's full multiaddress with a new key, kept in an empty ``folder``.

    Raises ``ConfigError`` if the transport is unusable, ``TransportError`` if the peer does not
    answer, ``ProtocolError`` if its manifest is invalid.
    """
    new_client = partial(_client, folder / "another", over)
    async with _client(folder / "client", over) as (identity, transport):
        peer_id, in_dht = await _connect(transport, address)
        signed = await fetch_manifest(transport, peer_id)
        swarm = open_manifest(signed), swarm_id(signed)
        yield Peer(peer_id, identity, transport, *swarm, new_client, in_dht)


async def _connect(transport: NodeTransport, address: str) -> tuple[str, bool]:
    """Return a peer's id, and whether it is in the DHT, as it must be unless behind a relay."""
    peer_id = address.rpartition("/p2p/")[2]
    try:
        await transport.connect(address)
    except PeerUnreachable:
        if not (is_relayed(address) and peer_id in await transport.node.connected()):
            raise
        return peer_id, False  # connected, but without an answer to the ping
    if not is_relayed(address):
        return peer_id, True
    answer = decode(await transport.node.call(peer_id, "DHTProtocol.rpc_ping", b""))
    (node, *_) = answer.get(2, [b""])
    return peer_id, isinstance(node, bytes) and bool(decode(node).get(1))


@asynccontextmanager
async def _client(folder: Path, backend: str) -> AsyncIterator[tuple[Identity, NodeTransport]]:
    network = NetworkSection(transport=backend, listen=LISTEN, relay="off")
    kind: TransportKind = TRANSPORTS.open(backend, {})
    kind.check(network)
    folder.mkdir()
    run_folder = RunFolder(folder)
    identity = Identity.create(run_folder.identity)
    transport = kind.open(network, run_folder, Counters(), beside=False)
    if not isinstance(transport, NodeTransport):
        raise ConfigError("network.transport", backend, "Its streams cannot be spoken on bare.")
    transport.use_validator(lambda record: True)
    try:
        await transport.start()
        yield identity, transport
    finally:
        await transport.close()


Outcome = Literal["ok", "fail", "skip"]


class Broken(Exception):  # noqa: N818 - a finding, not a fault of this program
    """The peer violates the protocol; the message says how."""


class Untried(Exception):  # noqa: N818 - also a finding
    """The case does not apply to this peer; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: ``says`` is the behavior that a ``clause`` of the protocol asks for.

    ``look`` raises :class:`Broken` or :class:`Untried`.
    """

    clause: str
    says: str
    look: Callable[[Peer], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case; ``found`` is the deviation or why it was skipped."""

    clause: str
    says: str
    outcome: Outcome
    found: str = ""
    sent: tuple[Sent, ...] = ()


async def find(case: Case, peer: Peer) -> CaseResult:
    peer.sent.clear()
    try:
        await case.look(peer)
        result: tuple[Outcome, str] = "ok", ""
    except Broken as broken:
        result = "fail", str(broken)
    except Untried as untried:
        result = "skip", str(untried)
    except TransportError as error:
        result = "fail", f"{error.code}: {error}"
    return CaseResult(case.clause, case.says, *result, tuple(peer.sent))


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
