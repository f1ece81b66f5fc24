"""The transport over a supervised node: its DHT for records, streams for requests."""

from __future__ import annotations

import asyncio
import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from protocol.messages import DIAL_BACK_STREAM, MAX_DIAL_BACK_RESPONSE_BYTES
from swarm.common.clock import Clock, SystemClock
from swarm.common.counters import Counters
from swarm.transport.node import (
    HashTable,
    Launch,
    NodeSettings,
    StreamEnds,
    StreamHandler,
    TransportNode,
)
from swarm.transport.reachability import ANSWER_SECONDS, LIMITS, DialBack, Reachability
from swarm.transport.request_limits import Services
from swarm.transport.streams import ask, serve
from swarm.transport.supervisor import Supervisor
from swarm.transport.transport import (
    MINIMUM_RATE,
    OPENING_SECONDS,
    DeadlineExceeded,
    Handler,
    HandlerLimits,
    PeerUnreachable,
    Reach,
    RecordCheck,
    Refusal,
    TransportError,
    check_size,
    links_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOKUP_SECONDS = 15.0  # for a read or store: a search and its calls, on a busy machine


class NodeTransport(Services):
    """:class:`swarm.transport.transport.Transport` over a supervised node.

    For the settings see :class:`NodeSettings`; ``relay`` sets the role.
    """

    relays: ClassVar[bool] = False  # whether nodes of this kind relay for others

    def __init__(
        self,
        launch: Launch,
        identity: Path,
        *,
        clock: Clock | None = None,
        counters: Counters | None = None,
        **settings: Any,
    ) -> None:
        given = NodeSettings(identity, **settings)
        relay = given.relay
        given = replace(given, role="public" if relay else "")
        super().__init__(clock or SystemClock(), counters)
        self._supervisor = Supervisor(
            launch, given, self._prepare, self._counters, self._peer_limits
        )
        self._reachability = Reachability(
            self._supervisor, self._ask_back, self._counters, relays=self.relays
        )
        self._watches_reach = relay
        dial_back = DialBack(
            self._connections,
            lambda: relay and self._reachability.relays,
            self._peer_limits.clock,
            self._peer_limits.dials,
        )
        self.handle(DIAL_BACK_STREAM, dial_back, LIMITS)

    @staticmethod
    def prepare_process() -> None:
        """Prepare a process that runs only this transport; call it first."""

    @property
    def node(self) -> Any:
        """The current node; another one after each failure."""
        return self._supervisor.node

    @property
    def peer_id(self) -> str:
        return self._supervisor.node.peer_id

    async def start(self) -> None:
        await self._supervisor.start()
        if self._watches_reach:
            self._supervisor.tasks.spawn(self._reachability.run())

    async def close(self) -> None:
        await self._supervisor.close()

    def addresses(self) -> tuple[str, ...]:
        return self._supervisor.node.addresses

    async def connect(self, address: str) -> str:
        return await self._supervisor.connect(address)

    def peers(self) -> tuple[str, ...]:
        return tuple(sorted(self._supervisor.connected))

    @property
    def daemon(self) -> int | None:
        """Process id of the daemon; None if there is none."""
        return self._supervisor.node.daemon if self._supervisor.started else None

    def stand_still(self, seconds: float) -> None:
        """Block the node's own threads for a while."""
        if self._supervisor.started:
            self._supervisor.node.stand_still(seconds)

    def state(self) -> dict[str, Any]:
        """Return the current state; it has fewer items while the node is not started."""
        state: dict[str, Any] = {"bytes_in": self.bytes_in, "bytes_out": self.bytes_out}
        if self._supervisor.started:
            state |= {
                "peer_id": self.peer_id,
                "addresses": self.addresses(),
                "peers": self.peers(),
                "reach": asdict(self.reach()),
            }
        return state

    def reach(self) -> Reach:
        return replace(
            self._reachability.reach,
            links=links_of(self._supervisor.connected),
            timings=self._supervisor.timings.latest,
        )

    def use_validator(self, check: RecordCheck) -> None:
        super().use_validator(check)
        if self._supervisor.started:
            self._supervisor.node.gate.check = check

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        check_size(value)
        record = key, subkey, value, expiry
        return await self._look_up("store", lambda table: table.store(*record), False)

    async def read(self, key: str) -> dict[bytes, bytes]:
        return await self._look_up("read", lambda table: table.read(key), {})

    async def request(
        self,
        peer: str,
        protocol: str,
        payload: bytes,
        *,
        limit: int,
        deadline: float,
        minimum_rate: float = MINIMUM_RATE,
    ) -> bytes:
        try:
            async with asyncio.timeout(deadline):
                reader, writer = await self._open(peer, protocol)
                with closing(writer):
                    self.bytes_out += len(payload)
                    answer = await ask(
                        reader, writer, payload, peer=peer, limit=limit, minimum_rate=minimum_rate
                    )
        except TimeoutError as error:
            raise DeadlineExceeded(f"peer {peer} did not answer within {deadline:g} s") from error
        except (OSError, EOFError, ValueError) as error:
            raise PeerUnreachable(f"no stream to peer {peer}: {error}") from error
        self.bytes_in += len(answer)
        return answer

    async def _connections(self, peer: str) -> tuple[str, ...]:
        return await self._supervisor.node.seen_at(peer)

    async def _ask_back(self, peer: str, request: bytes) -> bytes:
        limit, seconds = MAX_DIAL_BACK_RESPONSE_BYTES, ANSWER_SECONDS
        return await self.request(peer, DIAL_BACK_STREAM, request, limit=limit, deadline=seconds)

    async def _open(self, peer: str, protocol: str) -> StreamEnds:
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                return await self._supervisor.node.open_stream(peer, protocol)
        except TimeoutError as error:
            message = f"no stream to peer {peer} within {OPENING_SECONDS:g} s"
            raise PeerUnreachable(message) from error

    def handle(self, protocol: str, handler: Handler, limits: HandlerLimits) -> None:
        super().handle(protocol, handler, limits)
        if self._supervisor.started:
            work = self._supervisor.node.add_handler(protocol, self._stream_handler(protocol))
            self._supervisor.tasks.spawn(work)

    async def _prepare(self, node: TransportNode) -> None:
        node.gate.check, node.gate.watch = self._check, self._watch
        for protocol in self._services:
            await node.add_handler(protocol, self._stream_handler(protocol))

    def _stream_handler(self, protocol: str) -> StreamHandler:
        async def on_stream(peer: str, reader: StreamReader, writer: StreamWriter) -> None:
            try:
                received, sent = await serve(reader, writer, self._services[protocol], peer)
                self.bytes_in += received
                self.bytes_out += sent
            except Refusal as refusal:
                logger.debug("%s from %s refused: %s", protocol, peer, refusal.reason)
            except TransportError as error:
                self._counters.add("streams_lost", protocol=protocol, reason=error.code)
                logger.debug("%s: %s", protocol, error)
            finally:
                writer.close()

        return on_stream

    async def _look_up(self, call: str, work: Callable[[HashTable], Awaitable[T]], default: T) -> T:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                return await work(self._supervisor.node.hash_table)
        except Exception as error:  # noqa: BLE001 - of a DHT library; counted and logged
            self._counters.add("dht_failed", call=call)
            logger.warning("DHT %s failed: %s: %s", call, type(error).__name__, error)
            return default
