"""How libp2p peers learn each other's addresses: identify, push and FIND_NODE.

A node asks each new connection for its addresses and answers the same question. It asks connected
peers for a peer that is not connected.
"""

from __future__ import annotations

import asyncio
import logging
import random
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_bytes

from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot
from swarm.common.util import BackgroundTasks, cancel_all
from swarm.transport.libp2p.addresses import (
    HostPort,
    address_of,
    numeric,
    peer_id_bytes,
    peer_id_text,
    place_of,
)
from swarm.transport.libp2p.bridge import TrioThread
from swarm.transport.libp2p.host import Host
from swarm.transport.libp2p.stack import address_bytes
from swarm.transport.node import StreamEnds, StreamHandler
from swarm.transport.protobuf import decode, encode, one, several, varints
from swarm.transport.request_limits import CallBudget, PeerLimits, RequestSlots
from swarm.transport.streams import LENGTH_VARINT, expire
from swarm.transport.transport import PeerUnreachable, TransportError, is_relayed

logger = logging.getLogger(__name__)

IDENTIFY = "/ipfs/id/1.0.0"
PUSH = "/ipfs/id/push/1.0.0"  # announces changed addresses
ROUTING = "/ipfs/kad/1.0.0"
VERSION = b"swarm-node/1"

MAX_PEERS = 4096
MOST_EACH = 8
MOST_PEERS = 20
ASKED_AT_A_TIME = 5
ANSWER_SECONDS = 2.0
MOST_QUESTIONS = 64  # per stream; clients may keep a stream open for the next request
MESSAGE_BYTES = 1 << 16
MOST_STREAMS = 64
MOST_STREAMS_EACH = 8
STREAM_SECONDS = 60.0
RELAYED_AFTER_SECONDS = 0.3  # head start of direct connections
NEXT_AFTER_SECONDS = 0.3  # before a peer's next claimed address is dialed beside the last one

IDENTITY_HASH = b"\x00\x24"  # of a PeerID, before the 36 bytes of its public key

_FIND_NODE, _CONNECTED = 4, 1
_TYPE, _KEY, _CLOSER = 1, 2, 8

Open = Callable[[str, str], Awaitable[StreamEnds]]
"""(peer id, protocol) -> stream; raises ``PeerUnreachable``."""


class Book:
    """A few addresses each for a bounded number of peers, verified ones first.

    Names are those that the user gave: a claimed one would be looked up without limits.
    """

    def __init__(self) -> None:
        secret = token_bytes(32)
        self._known: Bounded[str, dict[str, None]] = Bounded(
            MAX_PEERS, lambda peer: lot(secret, peer.encode())
        )

    def of(self, peer: str) -> tuple[str, ...]:
        """Return a peer's addresses, without its id."""
        return tuple(self._known.get(peer) or ())

    def met(self, peer: str, places: Sequence[HostPort]) -> tuple[str, ...]:
        """Return a connected peer's addresses; direct ones first if one of ``places`` is.

        Its connections show its host, but its listening port is only its claim.
        """
        addresses = sorted(self.of(peer), key=is_relayed)
        if all(place.relay for place in places):
            relayed = [address for address in addresses if is_relayed(address)]
            return tuple(relayed or map(str, places))
        if addresses and is_relayed(addresses[0]):
            return (*(str(place) for place in places if not place.relay), *addresses)
        return tuple(addresses)

    def answered(self, peer: str, address: str) -> None:
        self._note(peer, [address, *self.of(peer)])

    def claimed(self, peer: str, addresses: Iterable[str]) -> None:
        """Note the addresses that a peer claims, before those that others claim for it."""
        self._note(peer, [*filter(_usable, addresses), *self.of(peer)])

    def reported(self, peer: str, addresses: Iterable[str]) -> None:
        """Note the addresses that one peer claims for another."""
        self._note(peer, [*self.of(peer), *filter(_usable, addresses)])

    def _note(self, peer: str, addresses: Iterable[str]) -> None:
        usable = [each for each in dict.fromkeys(addresses) if _usable(each, claimed=False)]
        if usable:
            self._known.put(peer, dict.fromkeys(usable[:MOST_EACH]))


def _usable(address: str, *, claimed: bool = True) -> bool:
    try:
        place = place_of(address)
    except ValueError:
        return False
    return place.port > 0 and (place.numeric or not claimed)


def identification(
    public_key: bytes, listening: Iterable[bytes], spoken: Iterable[str], observed: bytes
) -> bytes:
    """Encode the identify message of this node; addresses are binary multiaddresses."""
    return encode(
        {
            5: VERSION,
            6: VERSION,
            1: public_key,
            2: list(listening),
            4: observed,
            3: [protocol.encode() for protocol in spoken],
        }
    )


def listening_at(message: bytes, text: Callable[[bytes], str], most: int) -> tuple[str, ...]:
    """Return at most ``most`` addresses at which a peer claims to listen.

    ``text`` decodes a binary multiaddress, empty if invalid. Raises ``ValueError`` if malformed.
    """
    fields = decode(message)
    addresses = [text(address) for address in several(fields, 2)[:most]]
    one(fields, 1)
    return tuple(filter(None, addresses))


def question(peer: bytes) -> bytes:
    return encode({_TYPE: _FIND_NODE, _KEY: peer})


def asked_for(message: bytes) -> bytes:
    """Return the peer of a FIND_NODE request; raises ``ValueError`` for another one."""
    fields = decode(message)
    if varints(fields.get(_TYPE, [0])) != [_FIND_NODE]:
        raise ValueError("only FIND_NODE is answered")
    return one(fields, _KEY)


def reply(known: Iterable[tuple[bytes, Sequence[bytes]]]) -> bytes:
    """Encode peers and their binary multiaddresses as a FIND_NODE response."""
    closer = [encode({1: peer, 2: list(addrs), 3: _CONNECTED}) for peer, addrs in known]
    return encode({_TYPE: _FIND_NODE, _CLOSER: closer})


def addresses_in(
    message: bytes, text: Callable[[bytes], str], most: int
) -> Mapping[str, list[str]]:
    """Return addresses by peer id from a FIND_NODE response; see :func:`listening_at`."""
    result: dict[str, list[str]] = {}
    for data in several(decode(message), _CLOSER)[:MOST_PEERS]:
        fields = decode(data)
        addresses = [text(address) for address in several(fields, 2)[:most]]
        result[peer_id_text(one(fields, 1))] = [address for address in addresses if address]
    return result


@dataclass(eq=False)
class Introductions:
    """Requests addresses from peers, and serves those of this node and of known peers."""

    _host: Host
    _thread: TrioThread
    _open: Open
    _counters: Counters
    _peer_limits: PeerLimits
    _budget: CallBudget

    def __post_init__(self) -> None:
        self._dials = self._peer_limits.dials
        clock, reputations = self._peer_limits.clock, self._peer_limits.reputations
        self._slots = RequestSlots(MOST_STREAMS, MOST_STREAMS_EACH, clock, reputations)
        self.book = Book()
        self.listening: tuple[str, ...] = ()
        self.tasks = BackgroundTasks()
        self._host.on_connection = lambda peer: self.tasks.spawn(self._ask_where(peer))

    def handlers(self) -> dict[str, StreamHandler]:
        handlers = {IDENTIFY: self._identify, PUSH: self._on_push, ROUTING: self._route}
        return {protocol: self._bounded(handler) for protocol, handler in handlers.items()}

    def listen_at(self, addresses: tuple[str, ...]) -> None:
        """Set this node's addresses and push them to all connected peers."""
        self.listening = addresses
        self.tasks.spawn(self._push_to_all())

    async def reach(self, peer: str) -> None:
        """Connect to a peer, asking others for its address; raises ``PeerUnreachable``."""
        try:
            await self.dial(peer, self.book.of(peer))
        except OSError:
            try:
                await self.dial(peer, await self._asked_for(peer))
            except OSError as error:
                raise PeerUnreachable(f"no stream to peer {peer}: {error}") from error

    async def dial(self, peer: str, addresses: Sequence[str], *, named: bool = False) -> None:
        """Dial until one answers, and note it; raises ``OSError`` if none does.

        ``named``: the user gave the addresses, so they are dialed in parallel and without limits.
        """
        reason = "its listening address is unknown"
        queue, dials = list(addresses), set[asyncio.Future[None]]()
        pause = 0.0 if named else NEXT_AFTER_SECONDS
        try:
            while queue or dials:
                if queue:
                    dials.add(asyncio.ensure_future(self._dial(peer, queue.pop(0), named=named)))
                done, dials = await asyncio.wait(
                    dials, timeout=pause if queue else None, return_when=asyncio.FIRST_COMPLETED
                )
                errors = [error for future in done if (error := future.exception())]
                for error in errors:
                    if not isinstance(error, TransportError | OSError | EOFError | ValueError):
                        raise error
                    reason = str(error)
                if len(errors) < len(done):
                    return
        finally:
            await cancel_all(dials)
        raise ConnectionError(reason)

    async def _dial(self, peer: str, address: str, *, named: bool) -> None:
        place = place_of(address)
        if place.relay:
            await asyncio.sleep(RELAYED_AFTER_SECONDS)
        target, direct = place.relay or peer, replace(place, relay="")
        connected = await self._thread.call(self._host.connected)
        if peer in connected:
            return
        if named:
            if await self._thread.call(self._host.dial, target, direct):
                self._dials.note(f"{direct}/p2p/{target}")
        elif target not in connected:
            if self._dials.answered(f"{direct}/p2p/{target}"):
                # The user gave it if it is a name, which could lead to another host each time.
                direct = await numeric(direct)
            connect = partial(self._thread.call, self._host.dial, target, direct)
            await self._dials.dial(target, direct.host, direct.port, connect)
        if place.relay:
            await self._thread.call(self._host.dial, peer, place)
        if place.relay or self._dials.answered(f"{direct}/p2p/{peer}"):
            self.book.answered(peer, str(place))

    async def _asked_for(self, peer: str) -> tuple[str, ...]:
        connected = list(await self._thread.call(self._host.connected))
        sample = random.sample(connected, min(ASKED_AT_A_TIME, len(connected)))
        previous = set(self.book.of(peer))
        await asyncio.gather(*(self._ask(other, peer) for other in sample))
        return tuple(address for address in self.book.of(peer) if address not in previous)

    async def _ask(self, responder: str, peer: str) -> None:
        try:
            message = await self._exchange(responder, ROUTING, question(peer_id_bytes(peer)))
            for peer_id, addresses in addresses_in(message, address_of, MOST_EACH).items():
                self.book.reported(peer_id, addresses)
        except (TransportError, OSError, EOFError, ValueError) as error:
            logger.debug("peer %s does not say where %s is: %s", responder, peer, error)

    async def _exchange(self, peer: str, protocol: str, request: bytes | None) -> bytes:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await self._open(peer, protocol)
            with closing(writer):
                if request is not None:
                    writer.write(LENGTH_VARINT.head(len(request)) + request)
                size = await _size(reader, 4 * MESSAGE_BYTES)
                if not self._budget.takes(peer, size):
                    raise PermissionError("over budget")
                return await reader.readexactly(size)

    async def _ask_where(self, peer: str) -> None:
        try:
            message = await self._exchange(peer, IDENTIFY, None)
            self.book.claimed(peer, listening_at(message, address_of, MOST_EACH))
        except (TransportError, OSError, EOFError, ValueError) as error:
            logger.debug("peer %s does not say where it listens: %s", peer, error)

    async def _identify(self, peer: str, reader: StreamReader, writer: StreamWriter) -> None:
        await _send(writer, await self._budget.serve(peer, 0, partial(self._identification, peer)))

    async def _identification(self, peer: str) -> bytes:
        connected = await self._thread.call(self._host.connected)
        places: Sequence[HostPort] = connected.get(peer, ())
        return identification(
            self._host.stack.public_key,
            [address_bytes(address) for address in self.listening],
            await self._thread.call(self._host.spoken),
            address_bytes(str(places[-1])) if places else b"",
        )

    async def _on_push(self, peer: str, reader: StreamReader, writer: StreamWriter) -> None:
        size = await _size(reader, MESSAGE_BYTES)

        async def take() -> bytes:
            message = await reader.readexactly(size)
            self.book.claimed(peer, listening_at(message, address_of, MOST_EACH))
            return b""

        await self._budget.serve(peer, size, take)

    async def _push_to_all(self) -> None:
        await asyncio.gather(*map(self._push, await self._thread.call(self._host.connected)))

    async def _push(self, peer: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                _, writer = await self._open(peer, PUSH)
                with closing(writer):
                    writer.transport.set_write_buffer_limits(high=0)  # drained means sent
                    await _send(writer, await self._identification(peer))
        except (TransportError, OSError, EOFError, ValueError) as error:
            logger.debug("peer %s does not get the address of this node: %s", peer, error)

    async def _route(self, peer: str, reader: StreamReader, writer: StreamWriter) -> None:
        async def answer(size: int) -> bytes:
            wanted = asked_for(await reader.readexactly(size))
            return await self._reply(peer_id_text(wanted), peer)

        for _ in range(MOST_QUESTIONS):
            size = await _size(reader, MESSAGE_BYTES)
            await _send(writer, await self._budget.serve(peer, size, partial(answer, size)))

    async def _reply(self, wanted: str, asker: str) -> bytes:
        own_id = peer_id_text(IDENTITY_HASH + self._host.stack.public_key)
        connected = [p for p in await self._thread.call(self._host.connected) if p != asker]
        peer_ids = [wanted, *random.sample(connected, min(MOST_PEERS, len(connected)))]
        return reply(
            (peer_id_bytes(peer), [address_bytes(address) for address in addresses])
            for peer in dict.fromkeys(peer_ids)
            if (addresses := self.listening if peer == own_id else self.book.of(peer))
        )

    def _bounded(self, serve: StreamHandler) -> StreamHandler:
        async def on_stream(peer: str, reader: StreamReader, writer: StreamWriter) -> None:
            slot = self._slots.take(peer)
            try:
                if slot is None:
                    self._counters.add("introductions_refused")
                    self._peer_limits.refused(peer)
                    return
                writer.transport.set_write_buffer_limits(high=0)  # drained means sent
                async with asyncio.timeout(STREAM_SECONDS) as timeout:
                    slot.give_way = expire(timeout)
                    await serve(peer, reader, writer)
            except (TransportError, OSError, EOFError, ValueError) as error:
                logger.debug("introducing peer %s: %s", peer, error)
            finally:
                if slot is not None:
                    self._slots.release(slot)
                writer.close()

        return on_stream


async def _size(reader: StreamReader, most: int) -> int:
    """Read the length of a message; raises ``ValueError`` if over ``most``."""
    size = await LENGTH_VARINT.size(reader)
    if size > most:
        raise ValueError(f"a message of {size} bytes")
    return size


async def _send(writer: StreamWriter, message: bytes) -> None:
    writer.write(LENGTH_VARINT.head(len(message)) + message)
    await writer.drain()
