"""Supervision of one node: restarts it on failure and keeps its peers connected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from swarm.common.counters import Counters
from swarm.common.util import BackgroundTasks
from swarm.transport.node import (
    Launch,
    NodeSettings,
    Role,
    TransportNode,
    check_ports,
    task_failed,
    with_port_of,
)
from swarm.transport.peer_connections import (
    AddressProofs,
    DialLog,
    PeerCache,
    Redial,
    Shortcuts,
    Timings,
)
from swarm.transport.request_limits import PeerLimits
from swarm.transport.transport import ClockSkew, PeerUnreachable, TransportError, is_relayed

logger = logging.getLogger(__name__)

DIAL_SECONDS = 5.0
WATCH_SECONDS = 1.0
CACHE_EVERY = 60
MAX_SKEW_SECONDS = 3.0
FIRST_RESTART_PAUSE = 0.5
LONGEST_RESTART_PAUSE = 30.0

Prepare = Callable[[TransportNode], Awaitable[None]]  # makes a node ready before it connects


@dataclass(eq=False, repr=False)
class Supervisor:
    """A sequence of nodes under one identity and port."""

    _launch: Launch
    settings: NodeSettings
    _prepare: Prepare
    _counters: Counters
    _peer_limits: PeerLimits

    def __post_init__(self) -> None:
        self._cache = PeerCache(self.settings.peer_cache)
        limits, addresses = self._peer_limits, self._cache.load()
        for address in addresses:
            limits.dials.note(address)
        limits.disconnect = self._begin_disconnect
        self._clock = limits.clock
        self.connected: dict[str, tuple[str, ...]] = {}  # full addresses by peer id
        self.timings = Timings(self._clock, self._counters)
        self.tasks = BackgroundTasks(partial(task_failed, self._counters))
        self._redial = Redial(self.settings.peers, addresses, self._clock)
        self._shortcuts = Shortcuts(self._clock)
        self._proofs = AddressProofs(limits.dials, self._clock)
        self._log = DialLog()
        self._leaving: set[str] = set()  # peers that are being disconnected
        self._change = ""  # why the node is replaced, empty if it died
        self._dialing: asyncio.Future[None] | None = None
        self._proving: asyncio.Future[None] | None = None
        self._node: TransportNode | None = None

    @property
    def started(self) -> bool:
        return self._node is not None

    @property
    def node(self) -> TransportNode:
        """The current node; raises :class:`PeerUnreachable` before start and after close."""
        if self._node is None:
            raise PeerUnreachable("the transport is not started")
        return self._node

    async def start(self) -> None:
        """Start the node and dial the known peers; continue alone if none answers.

        Raises ``PortTaken``, ``DaemonFailed`` or, if every peer that answered disagrees with this
        machine's clock, ``ClockSkew``.
        """
        check_ports(self.settings.listen)
        self._node = await self._start_node(None)
        listen = with_port_of(self._node.listening, self.settings.listen)
        self.settings = replace(self.settings, listen=listen)
        try:
            outcomes = await self._dial(self._redial.due(()))
            skew_errors = [outcome for outcome in outcomes if isinstance(outcome, ClockSkew)]
            if skew_errors and not any(isinstance(outcome, str) for outcome in outcomes):
                raise skew_errors[0]
            self.connected = await self._node.connected()
        except BaseException:
            await self.close()
            raise
        self.tasks.spawn(self._supervise())
        self.tasks.spawn(self._watch())

    def become(self, role: Role, relays: tuple[str, ...], why: str) -> None:
        """Replace the node with one in another role, using ``relays``; log ``why``."""
        self.settings = replace(self.settings, role=role, relays=relays)
        self._change = why
        self.node.end()

    async def close(self) -> None:
        """Stop the node and everything that would restart it."""
        await self.tasks.close()
        if self._node is not None:
            node, self._node = self._node, None
            self._remember_peers()
            self.connected = {}
            await node.stop()

    def dialable(self, address: str) -> bool:
        """Return whether a peer answered at its own address, and not through a relay."""
        return not is_relayed(address) and self._peer_limits.dials.answered(address)

    async def connect(self, address: str, *, claimed: bool = False) -> str:
        start = self._clock.time()
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                peer, peer_time = await self.node.connect(address, claimed=claimed)
        except TimeoutError as error:
            message = f"no peer answers at {address} within {DIAL_SECONDS:g} s"
            raise PeerUnreachable(message) from error
        self.connected.setdefault(peer, (address,))
        skew = max(start - peer_time, peer_time - self._clock.time())
        if skew > MAX_SKEW_SECONDS:
            self._counters.add("clock_skew")
            raise ClockSkew(
                f"this machine's clock and that of peer {peer} are at least {skew:.1f} s "
                f"apart, more than {MAX_SKEW_SECONDS:g} s; set the clock "
                "(for instance: timedatectl set-ntp true)"
            )
        return peer

    async def _dial(self, addresses: Sequence[str]) -> list[BaseException | str]:
        # Returns the peer id or the error for each address.
        outcomes = await asyncio.gather(
            *(self.connect(addr, claimed=not self._redial.named(addr)) for addr in addresses),
            return_exceptions=True,
        )
        reached = any(isinstance(outcome, str) for outcome in outcomes)
        for address, outcome in zip(addresses, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._counters.add("dials_failed")
                self._log.failed(address, outcome, reached=reached)
            else:
                self._log.answered(address, outcome)
        if reached:
            with suppress(TimeoutError):
                async with asyncio.timeout(DIAL_SECONDS):
                    await self.node.hash_table.find_neighbours()
        return outcomes

    async def _watch(self) -> None:
        for turn in count(1):
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self._look()
            except Exception as error:  # a node that stops looking dials no peers
                self._counters.add("watch_failed")
                expected = isinstance(error, TransportError | OSError | EOFError)
                level, trace = (logging.INFO, None) if expected else (logging.WARNING, error)
                logger.log(level, "looking for peers failed: %s", error, exc_info=trace)
            if turn % CACHE_EVERY == 0:
                self._remember_peers()
                self._redial.remember(self._cache.addresses)

    async def _look(self) -> None:
        self.connected = await self.node.connected()
        await self.node.look()
        if self._proving is None or self._proving.done():
            self._proving = self.tasks.spawn(self._prove())
        # In the background, because a dead address takes seconds.
        if self._dialing is None or self._dialing.done():
            addresses = self._redial.due(self.connected)
            self._dialing = self.tasks.spawn(self._dial_in_background(addresses))
        if relayed_peer := self._shortcuts.due(self.node.peer_id, self.connected):
            self.tasks.spawn(self._reconnect(relayed_peer))
        if peer := self.timings.due(self.connected):
            self.tasks.spawn(self.timings.measure(self.node, peer))

    def _remember_peers(self) -> None:
        self._cache.remember(self._addresses_proved(), self._peer_limits.reputations.of_peer)

    async def _prove(self) -> None:
        # Immediately: a node that is cut off a moment later needs addresses to dial.
        with suppress(TransportError):
            await self._proofs.find(self.node, self.connected)
        if self._cache.meet(self._addresses_proved()):
            self._redial.remember(self._cache.addresses)

    async def _reconnect(self, peer: str) -> None:
        addresses = self.connected.get(peer, ())
        self._counters.add("relayed_begun_anew")
        logger.info("peer %s is relayed: dialing it again, for a direct connection", peer)
        await self._disconnect(peer)
        await self._dial_in_background(addresses)

    async def _dial_in_background(self, addresses: Sequence[str]) -> None:
        try:
            await self._dial(addresses)
        except (TransportError, OSError, EOFError) as error:
            self._counters.add("watch_failed")
            logger.info("dialing broke off: %s", error)

    async def _supervise(self) -> None:
        while True:
            old_node = self.node
            reason = await old_node.wait_dead()
            if self._change:
                self._counters.add("reach_changes")
                logger.info("%s; restarting", self._change)
                self._change = ""
            else:
                self._counters.add("daemon_restarts")
                logger.error("%s; restarting it with the same identity and port", reason)
            addresses = self._addresses_connected()
            self.connected = {}
            try:
                await old_node.stop()
            except Exception as error:  # noqa: BLE001 - the library's and the daemon's
                logger.warning("what is left of it was not stopped: %r", error)
            self._node = await self._restart(old_node)
            # In the background, because the new node may also die from it.
            self.tasks.spawn(self._dial_in_background(addresses))

    async def _restart(self, old_node: TransportNode) -> TransportNode:
        pause = FIRST_RESTART_PAUSE
        while True:
            try:
                return await self._start_node(old_node)
            except Exception as error:  # noqa: BLE001 - the library's and the daemon's
                detail = error if isinstance(error, TransportError) else repr(error)
                logger.error("%s; next attempt in %g s", detail, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RESTART_PAUSE)

    async def _start_node(self, old_node: TransportNode | None) -> TransportNode:
        # If cancelled, stop the node that is starting instead of losing it.
        launch = self._launch(self.settings, self._counters, old_node, self._peer_limits)
        task = asyncio.ensure_future(launch)
        try:
            node = await asyncio.shield(task)
        except asyncio.CancelledError:
            with suppress(TransportError):
                await (await task).stop()
            raise
        try:
            await self._prepare(node)
        except BaseException:
            await node.stop()
            raise
        return node

    def _begin_disconnect(self, peer: str) -> None:
        if peer not in self._leaving:
            self._leaving.add(peer)
            self.tasks.spawn(self._disconnect(peer))

    async def _disconnect(self, peer: str) -> None:
        try:
            await self.node.disconnect(peer)
        except Exception as error:  # noqa: BLE001 - the library's and the daemon's
            logger.info("peer %s was not disconnected: %s", peer, error)
        finally:
            self._leaving.discard(peer)

    def _addresses_connected(self) -> tuple[str, ...]:
        return tuple(address for addresses in self.connected.values() for address in addresses)

    def _addresses_proved(self) -> tuple[str, ...]:
        return tuple(filter(self._peer_limits.dials.answered, self._addresses_connected()))
