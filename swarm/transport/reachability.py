"""Reachability: dial-back checks and their handler, and the use of relays."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from random import sample

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from protocol import messages
from protocol.errors import ProtocolError
from protocol.identity import peer_id_of
from protocol.messages import MAX_PORTS, DialledBack
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff
from swarm.transport.supervisor import Supervisor
from swarm.transport.transport import (
    HandlerLimits,
    Reach,
    Refusal,
    TransportError,
    Way,
    describe_reach,
    dialled,
    host_of,
    is_relayed,
    links_of,
    port_of,
)

logger = logging.getLogger(__name__)

ASKED = 3
RELAYS = 3
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 1.0
RELAYED_AFTER_SECONDS = 10.0  # for relays to work before the node tries others
AGAIN_SECONDS = 60.0
DIRECT_SECONDS = 600.0  # between two checks: a router's address changes, a port is opened

Ask = Callable[[str, bytes], Awaitable[bytes]]  # (peer id, request) -> dial-back answer


class Reachability:
    """Monitor of one node's ``reach``; in the role "private" the node uses relays.

    ``relays`` says whether nodes of this kind relay for others.
    """

    def __init__(
        self, supervisor: Supervisor, ask: Ask, counters: Counters, *, relays: bool
    ) -> None:
        self.reach = Reach()
        self._relays = relays
        self._supervisor = supervisor
        self._ask = ask
        self._counters = counters
        self._answers: tuple[DialledBack, ...] = ()  # of the last dial-backs
        self._relaying: tuple[str, ...] = ()  # ids of the answering peers that relay
        self._failed_before = False
        self._fruitless = 0

    @property
    def relays(self) -> bool:
        """Whether this node relays for others: it is not known to need relays itself."""
        return self._relays and not self._supervisor.settings.client

    async def run(self) -> None:
        """Check until cancelled."""
        loop = asyncio.get_running_loop()
        asked_at = relayed_at = -DIRECT_SECONDS
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = loop.time()
            self._note()
            if self.reach.way == "relayed":
                relayed_at = now
            lost = self._supervisor.settings.client and now > relayed_at + RELAYED_AFTER_SECONDS
            if now < asked_at + self._pause(lost):
                continue
            links = links_of(self._supervisor.connected)
            if not (near := [peer for peer, way in links.items() if way == "direct"]):
                continue
            answered, asked_at = await self._try(near), loop.time()
            if answered and self._decide(lost):
                relayed_at = loop.time()

    async def _try(self, near: list[str]) -> bool:
        # Returns whether any of the asked peers answered.
        ports = self._ports()
        chosen = sample(near, min(ASKED, len(near)))
        found = await asyncio.gather(*(self._dialled_by(peer, ports) for peer in chosen))
        answers = {
            peer: answer for peer, answer in zip(chosen, found, strict=True) if answer is not None
        }
        if answers:
            self._answers = tuple(answers.values())
            self._relaying = tuple(peer for peer, answer in answers.items() if answer.relays)
        self._fruitless = 0 if answers else self._fruitless + 1
        return bool(answers)

    async def _dialled_by(self, peer: str, ports: tuple[int, ...]) -> DialledBack | None:
        try:
            answer = await self._ask(peer, messages.encode_dial_back_request(ports))
            return messages.decode_dial_back_response(answer, ports)
        except (TransportError, ProtocolError) as error:
            self._counters.add("dial_backs_failed")
            logger.debug("peer %s did not try to dial this node: %s", peer, error)
            return None

    def _decide(self, lost: bool) -> bool:
        # Returns whether the node restarts in another role.
        supervisor, settings = self._supervisor, self._supervisor.settings
        if dialled(self._answers):
            self._failed_before = False
            if settings.client:
                supervisor.become("public", (), "peers can dial this node now")
                return True
            self._set("direct")
            return False
        if self.reach.way == "direct" and not self._failed_before:
            self._failed_before = True  # try again: the fault may be the peers'
            return False
        relays = self._addresses_of(self._relaying)
        if relays and (lost or not settings.client or not settings.relays):
            cause = self._described("unreachable").cause
            supervisor.become("private", relays, f"{cause}; taking relays")
            self._set("unreachable")
            return True
        self._note()
        return False

    def _pause(self, lost: bool) -> float:
        if self._fruitless:
            return min(AGAIN_SECONDS, 2.0 ** min(self._fruitless, 10))
        if lost or self._failed_before:
            return RELAYED_AFTER_SECONDS
        return {"direct": DIRECT_SECONDS, "unknown": 0.0}.get(self.reach.way, AGAIN_SECONDS)

    def _note(self) -> None:
        links = links_of(self._supervisor.connected)
        way = self.reach.way
        if self._supervisor.settings.client or (way != "direct" and self._answers):
            relayed = any(map(is_relayed, self._supervisor.node.addresses))
            way = "relayed" if relayed else "unreachable"
        if way != self.reach.way:
            self._set(way)
        self.reach = replace(self.reach, links=links)

    def _set(self, way: Way) -> None:
        if way != self.reach.way:
            self.reach = self._described(way)
            remedy = f". {self.reach.remedy}" if self.reach.remedy else ""
            logger.info("this node is %s: %s%s", way, self.reach.cause, remedy)

    def _described(self, way: Way) -> Reach:
        through = {a.split("/p2p/")[1] for a in self._supervisor.node.addresses if is_relayed(a)}
        hosts = [answer.host for answer in self._answers]
        return describe_reach(way, self._ports(), hosts, len(through))

    def _ports(self) -> tuple[int, ...]:
        # In this order: announced, mapped by the router, listened on.
        settings = self._supervisor.settings
        own = (a for a in self._supervisor.node.addresses if not is_relayed(a))
        ports = map(port_of, (*settings.announce, *own, *settings.listen))
        return tuple(dict.fromkeys(port for port in ports if port))[:MAX_PORTS]

    def _addresses_of(self, peers: Sequence[str]) -> tuple[str, ...]:
        connected = self._supervisor.connected
        near = ([a for a in connected.get(peer, ()) if not is_relayed(a)] for peer in peers)
        return tuple(addresses[0] for addresses in near if addresses)[:RELAYS]


PROTOCOL = b"Noise_XX_25519_ChaChaPoly_SHA256"
SIGNED = b"noise-libp2p-static-key:"
ED25519 = b"\x08\x01\x12\x20"
KEY_BYTES, TAG_BYTES = 32, 16
LARGEST_LINE = 64
LARGEST_MESSAGE = 4096
NONCE = bytes(12)


class NoPeer(Exception):  # noqa: N818
    """No answer, or no proof of an Ed25519 PeerID."""


async def who_answers(host: str, port: int, seconds: float) -> str:
    """Return a libp2p listener's PeerID, proved by signature; raise :class:`NoPeer`."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            for line in (b"/multistream/1.0.0\n", b"/noise\n"):
                writer.write(bytes((len(line),)) + line)
                if await _line(reader) != line:
                    raise NoPeer(f"{host} port {port} speaks another protocol")
            handshake = Handshake()
            first = handshake.first()
            writer.write(len(first).to_bytes(2, "big") + first)
            size = int.from_bytes(await reader.readexactly(2), "big")
            if size > LARGEST_MESSAGE:
                raise NoPeer(f"{host} port {port} sends a handshake of {size} bytes")
            return handshake.peer_of(await reader.readexactly(size))
    except (OSError, EOFError, TimeoutError) as error:
        raise NoPeer(f"nobody answers at {host} port {port}: {error!r}") from error
    finally:
        if writer is not None:
            writer.close()


class Handshake:
    """The initiator's side of one Noise handshake, up to the responder's proof."""

    def __init__(self) -> None:
        self._ours = X25519PrivateKey.generate()
        self._hash = self._chain = PROTOCOL
        self._key = b""
        self._mix(b"")

    def first(self) -> bytes:
        """Return the first message: an ephemeral public key and nothing else."""
        public = self._ours.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        self._mix(public)
        self._mix(b"")
        return public

    def peer_of(self, second: bytes) -> str:
        """Return the PeerID that the second message proves; raise :class:`NoPeer`."""
        ends = KEY_BYTES, 2 * KEY_BYTES + TAG_BYTES
        theirs, sealed, payload = second[: ends[0]], second[ends[0] : ends[1]], second[ends[1] :]
        try:
            self._mix(theirs)
            self._agree(theirs)
            static = self._open(sealed)
            self._agree(static)
            key, signature = identity_in(self._open(payload))
            Ed25519PublicKey.from_public_bytes(key).verify(signature, SIGNED + static)
        except (InvalidTag, InvalidSignature, ValueError) as error:
            raise NoPeer(f"what answers proves no PeerID: {error!r}") from error
        return peer_id_of(key)

    def _mix(self, data: bytes) -> None:
        self._hash = sha256(self._hash + data).digest()

    def _agree(self, public: bytes) -> None:
        # Mix the secret that our ephemeral key shares with ``public`` into chain and key.
        secret = self._ours.exchange(X25519PublicKey.from_public_bytes(public))
        drawn = hmac.digest(self._chain, secret, sha256)
        self._chain = hmac.digest(drawn, b"\x01", sha256)
        self._key = hmac.digest(drawn, self._chain + b"\x02", sha256)

    def _open(self, sealed: bytes) -> bytes:
        plain = ChaCha20Poly1305(self._key).decrypt(NONCE, sealed, self._hash)
        self._mix(sealed)
        return plain


async def _line(reader: asyncio.StreamReader) -> bytes:
    # The length of a multistream-select line fits in one byte.
    size = (await reader.readexactly(1))[0]
    if size > LARGEST_LINE:
        raise NoPeer("what answers does not speak multistream-select")
    return await reader.readexactly(size)


def identity_in(payload: bytes) -> tuple[bytes, bytes]:
    """Return public key and signature, fields 1 and 2, of a handshake's payload.

    Each is shorter than 128 bytes. Raises ``ValueError`` if the key is not an Ed25519 key.
    """
    found: dict[int, bytes] = {}
    at = 0
    while at + 2 <= len(payload) and len(found) < 2:
        tag, size = payload[at], payload[at + 1]
        found[tag] = payload[at + 2 : at + 2 + size]
        at += 2 + size
    key, signature = found.get(0x0A, b""), found.get(0x12, b"")
    if not key.startswith(ED25519):
        raise ValueError("no Ed25519 key")
    return key[len(ED25519) :], signature


DIAL_SECONDS = 2.0  # less than the asking peer waits for an answer to begin
PAUSE_SECONDS = 5.0
LIMITS = HandlerLimits(messages.MAX_DIAL_BACK_REQUEST_BYTES, concurrent=4, concurrent_per_peer=1)

Connections = Callable[[str], Awaitable[tuple[str, ...]]]  # peer id -> current addresses


class DialBack:
    """The handler of ``/swarm-node/1/dial-back``.

    It dials only the address of the peer's connection. A peer cannot forge that address, because
    a connection carries packets both ways. Each peer gets one request per ``PAUSE_SECONDS`` and at
    most four ports; each attempt sends 150 bytes and ends. ``connections`` returns a peer's
    addresses; ``relays`` returns whether this node relays for others.
    """

    def __init__(self, connections: Connections, relays: Callable[[], bool], clock: Clock) -> None:
        self._connections = connections
        self._relays = relays
        self._lately: Backoff[str] = Backoff(clock, first=PAUSE_SECONDS, longest=PAUSE_SECONDS)

    async def __call__(self, peer: str, request: bytes) -> bytes:
        try:
            ports = messages.decode_dial_back_request(request)
        except ProtocolError as error:
            raise Refusal(error.code) from error
        if self._lately.waits(peer):
            raise Refusal("asked_too_often")
        self._lately.failed(peer)
        addresses = await self._connections(peer)
        hosts = [host_of(address) for address in addresses if not is_relayed(address)]
        if not hosts:
            raise Refusal("relayed")
        answered = await asyncio.gather(*(_answers(peer, hosts[0], port) for port in ports))
        opened = tuple(port for port, is_open in zip(ports, answered, strict=True) if is_open)
        return messages.encode_dial_back_response(DialledBack(hosts[0], opened, self._relays()))


async def _answers(peer: str, host: str, port: int) -> bool:
    try:
        return await who_answers(host, port, DIAL_SECONDS) == peer
    except NoPeer as error:
        logger.debug("peer %s cannot be dialled: %s", peer, error)
        return False
