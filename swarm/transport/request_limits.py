"""Limits on peers' requests: request slots, backoff, floods and byte budgets.

A request holds a slot from its first byte to the last byte of its answer. While this node waits for
the peer to send the request or to take the answer, a peer with fewer slots can get the slot.
Everything runs on an injected clock.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import KEPT, Backoff, ByteBudget, ReputationOf, Reputations
from swarm.transport.dial_limits import DialLimits
from swarm.transport.records import Watch
from swarm.transport.transport import Handler, HandlerLimits, RecordCheck, Refusal, TransportError

logger = logging.getLogger(__name__)

YOUNG_SECONDS = 0.25  # a younger request yields only to peers with two slots fewer
TAKING_SECONDS = 2.0
CONTESTED_RATE = 65_536.0  # bytes per second at which a peer must take an answer to keep its slot


@dataclass(eq=False, slots=True)
class RequestSlot:
    """The slot of one request."""

    peer: str
    known: bool
    since: float  # monotonic seconds at which the waiting began
    safe_until: float  # monotonic seconds, until which it yields only to peers with two slots fewer
    waiting: bool = True  # for the request, or for the peer to take the answer, not for this node
    firm: bool = False  # it yields to no peer before safe_until
    lost: bool = False  # another peer got the slot
    give_way: Callable[[], None] = field(default=lambda: None)  # called when the slot is lost


@dataclass(eq=False, repr=False)
class RequestSlots:
    """A service's slots: some for each peer, a quarter of all for known peers only.

    If none is free, the peer with most slots loses the one waited for longest. Unknown peers lose
    slots before known peers. A slot that does not wait for its peer is never lost.
    """

    _total: int
    _each: int
    _clock: Clock
    _reputations: Reputations

    def __post_init__(self) -> None:
        self._slots: dict[RequestSlot, None] = {}
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, peer: str) -> RequestSlot | None:
        """Take a slot for an incoming request of ``peer``; return None if there is none."""
        if self._held[peer] >= self._each:
            return None
        known, now = self._reputations.knows(peer), self._clock.monotonic()
        if not self._room(known):
            victim = self._victim(peer, known, now)
            if victim is None:
                return None
            victim.lost = True
            self.release(victim)
            victim.give_way()
        slot = RequestSlot(peer, known, now, now + YOUNG_SECONDS)
        self._slots[slot] = None
        self._held[peer] += 1
        return slot

    def hand_over(self, slot: RequestSlot, size: int) -> None:
        """Note that an answer of ``size`` bytes is ready for the peer to take."""
        slot.waiting = slot.firm = True
        slot.since = self._clock.monotonic()
        slot.safe_until = slot.since + TAKING_SECONDS + size / CONTESTED_RATE

    def release(self, slot: RequestSlot) -> None:
        """Free the slot; do nothing if it was lost."""
        if slot in self._slots:
            del self._slots[slot]
            self._held -= Counter((slot.peer,))  # without counts of zero

    def _room(self, known: bool) -> bool:
        if len(self._slots) >= self._total:
            return False
        unknown_count = sum(not slot.known for slot in self._slots)
        return known or unknown_count < self._total - int(self._total * KEPT)

    def _victim(self, peer: str, known: bool, now: float) -> RequestSlot | None:
        own_count = self._held[peer]

        def gives_way(slot: RequestSlot) -> bool:
            if not slot.waiting or slot.peer == peer or (slot.known and not known):
                return False
            if slot.safe_until > now and slot.firm:
                return False
            if known and not slot.known:
                return True
            return self._held[slot.peer] > own_count + (slot.safe_until > now)

        def rank(slot: RequestSlot) -> tuple[bool, int, float]:
            return not slot.known, self._held[slot.peer], -slot.since

        return max(filter(gives_way, self._slots), key=rank, default=None)


MOST_REFUSALS = 128.0
FADE_SECONDS = 10.0
MAX_REMEMBERED = 4096


class FloodGuard:
    """Refusals of each peer, which decay by a factor e in ``FADE_SECONDS``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[str, tuple[float, float]] = {}

    def refused(self, peer: str) -> bool:
        """Count a refusal; return whether it is one too many, which resets the count."""
        now = self._clock.monotonic()
        count, last = self._refusals.pop(peer, (0.0, now))
        count = 1.0 + count * math.exp((last - now) / FADE_SECONDS)
        if count >= MOST_REFUSALS:
            return True
        if len(self._refusals) >= MAX_REMEMBERED:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[peer] = count, now
        return False


FREE_TIMEOUTS = 3
FIRST_PAUSE = 2.0
FLOOD_PAUSE = 10.0
LONGEST_PAUSE = 120.0


class PeerLimits:
    """Reputation, backoff and flood state of the peers of one transport."""

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self.clock = clock
        self.reputations = Reputations(clock)
        self.dials = DialLimits(clock, counters)
        self.disconnect: Callable[[str], None] = lambda peer: None  # set by the supervisor
        self._counters = counters
        self._lateness: Backoff[str] = Backoff(
            clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE, free=FREE_TIMEOUTS
        )
        self._flood = FloodGuard(clock)
        self._exclusions: Backoff[str] = Backoff(clock, first=FLOOD_PAUSE, longest=LONGEST_PAUSE)

    def accepts(self, peer: str) -> bool:
        """Return whether the node accepts requests of a peer now."""
        return not (self._lateness.waits(peer) or self.excluded(peer))

    def excluded(self, peer: str) -> bool:
        """Return whether a peer flooded this node recently and is still excluded."""
        return self._exclusions.waits(peer)

    def was_late(self, peer: str) -> None:
        """Record that a peer sent its request or took its answer too late."""
        pause = self._lateness.failed(peer)
        if pause:
            self._counters.add("peers_backed_off")
            logger.info("peer %s keeps this node waiting and is refused for %g s", peer, pause)

    def was_punctual(self, peer: str) -> None:
        self._lateness.succeeded(peer)

    def refused(self, peer: str) -> None:
        """Record a refusal; disconnect a flooding peer, also each time it returns."""
        if not self.excluded(peer):
            if not self._flood.refused(peer):
                return
            pause = self._exclusions.failed(peer)
            logger.info("peer %s floods this node and is kept out for %g s", peer, pause)
        self._counters.add("peers_shown_out")
        self.disconnect(peer)


@dataclass(eq=False, repr=False)
class Service:
    """A handler with a maximum of simultaneous requests, in total and per peer."""

    protocol: str
    _handler: Handler
    _limits: HandlerLimits
    _counters: Counters
    peer_limits: PeerLimits

    def __post_init__(self) -> None:
        limits, peer_state = self._limits, self.peer_limits
        self._slots = RequestSlots(
            limits.concurrent, limits.concurrent_per_peer, peer_state.clock, peer_state.reputations
        )

    @contextmanager
    def admit(self, peer: str) -> Iterator[RequestSlot]:
        """Hold one of the peer's slots from the first byte read to the last one sent.

        Raises :class:`Refusal`: ``busy`` if no slot is free, ``backed_off`` if the peer was late
        recently, ``gave_way`` if another peer got the slot.
        """
        if not self.peer_limits.accepts(peer):
            raise self._refused(peer, "backed_off")
        slot = self._slots.take(peer)
        if slot is None:
            raise self._refused(peer, "busy")
        try:
            yield slot
        except (EOFError, OSError):
            if slot.lost:
                raise self.refusal("gave_way") from None
            if slot.waiting:
                self.peer_limits.was_late(peer)
            raise
        else:
            self.peer_limits.was_punctual(peer)
        finally:
            self._slots.release(slot)

    def answered(self, slot: RequestSlot, size: int) -> None:
        """Note that an answer of ``size`` bytes is on its way."""
        self._slots.hand_over(slot, size)

    def check_size(self, size: int) -> None:
        """Raise :class:`Refusal` ``too_large`` for a request over the limit."""
        if size > self._limits.request_bytes:
            raise self.refusal("too_large")

    async def answer(self, peer: str, request: bytes) -> bytes:
        """Return the handler's answer; turn its errors into a :class:`Refusal`."""
        try:
            return await self._handler(peer, request)
        except Refusal as refusal:
            raise self._refused(peer, refusal.reason) from None
        except TransportError as error:
            # The handler's process has already logged the origin of this error.
            logger.error("handler of %s failed on a request of %s: %s", self.protocol, peer, error)
            raise self.refusal("internal") from None
        except Exception:
            logger.exception("handler of %s failed on a request of %s", self.protocol, peer)
            raise self.refusal("internal") from None

    def refusal(self, reason: str) -> Refusal:
        """Count and return a refusal, to be raised."""
        self._counters.add("requests_refused", protocol=self.protocol, reason=reason)
        return Refusal(reason)

    def _refused(self, peer: str, reason: str) -> Refusal:
        self.peer_limits.refused(peer)
        return self.refusal(reason)


class Services:
    """The services of one transport, with its record check, watch and byte counts."""

    def __init__(self, clock: Clock, counters: Counters | None) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self._counters = counters or Counters()
        self._peer_limits = PeerLimits(clock, self._counters)
        self._services: dict[str, Service] = {}
        self._check: RecordCheck | None = None
        self._watch = Watch(self._counters)

    def use_validator(self, check: RecordCheck) -> None:
        self._check = check

    def use_reputation(self, reputation: ReputationOf) -> None:
        self._peer_limits.reputations.use(reputation)

    def watch(self, keys: Collection[str], heard: Callable[[bytes], None]) -> None:
        self._watch.begin(keys, heard)

    def handle(self, protocol: str, handler: Handler, limits: HandlerLimits) -> None:
        self._services[protocol] = Service(
            protocol, handler, limits, self._counters, self._peer_limits
        )


RPC_BYTES_PER_SECOND = 1 << 20
RPC_SENT_PER_SECOND = 8 << 20
RPC_LARGEST = 1 << 19
ERROR_BYTES = 1 << 18  # charged for an error, before which megabytes may have been collected


class CallBudget:
    """Byte budgets for incoming calls and their answers.

    They prevent a peer from making this node verify records or send a shard again and again.
    """

    def __init__(self, counters: Counters, peer_limits: PeerLimits) -> None:
        self._counters = counters
        self._peer_limits = peer_limits
        self._received, self._sent = (
            ByteBudget(rate, RPC_LARGEST, peer_limits.clock, peer_limits.reputations)
            for rate in (RPC_BYTES_PER_SECOND, RPC_SENT_PER_SECOND)
        )

    async def serve(self, caller: str, size: int, handle: Callable[[], Awaitable[bytes]]) -> bytes:
        """Charge and answer a call; raise ``PermissionError`` over the caller's share."""
        if not self.takes(caller, size) or not self._sent.take(caller, 0):
            self._counters.add("dht_calls_refused")
            self._peer_limits.refused(caller)
            raise PermissionError("over budget")
        cost = ERROR_BYTES
        try:
            answer = await handle()
            cost = len(answer)
        finally:
            self._sent.owe(caller, cost)
        return answer

    def takes(self, peer: str, size: int) -> bool:
        """Charge a message that a peer sends, or return False over the peer's share."""
        return not self._peer_limits.excluded(peer) and self._received.take(peer, size)
