"""Peer connections: redials, address cache, direct reconnects, timings, errors."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import KNOWN, Backoff
from swarm.common.util import make_private, replace
from swarm.transport import protobuf
from swarm.transport.dial_limits import DialLimits, place_in
from swarm.transport.handshake import NoPeer
from swarm.transport.node import TransportNode
from swarm.transport.transport import (
    ClockSkew,
    Timing,
    TransportError,
    host_of,
    is_relayed,
    links_of,
)

logger = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
# Time for a lost peer to come back by itself. A peer behind a router dials, after a restart, from
# the port at which others dial it. If two peers dial each other this way, neither gets through.
LOST_SECONDS = 5.0
LONGEST_FOR_BOOTSTRAP = 10.0
AT_A_TIME = 8
MAX_REMEMBERED = 64


class Redial:
    """Addresses to dial, with doubling pauses until each peer is connected.

    Bootstrap addresses are dialed whenever their peer is missing. Remembered peers are all dialed
    while no peer is connected, otherwise a few at a time: a split swarm has peers on both sides,
    and its bootstrap peers may be gone when the split ends.
    """

    def __init__(self, bootstrap: Iterable[str], remembered: Iterable[str], clock: Clock) -> None:
        self._bootstrap = tuple(dict.fromkeys(bootstrap))
        self._remembered: dict[str, None] = {}
        self._clock = clock
        self._next: dict[str, tuple[float, float]] = {}  # time of the next dial, pause after it
        self.remember(remembered)

    def remember(self, addresses: Iterable[str]) -> None:
        """Replace the remembered peers with the first ``MAX_REMEMBERED`` addresses."""
        wanted = [a for a in dict.fromkeys(addresses) if a not in self._bootstrap]
        self._remembered = dict.fromkeys(wanted[:MAX_REMEMBERED])
        targets = {*self._bootstrap, *self._remembered}
        self._next = {address: plan for address, plan in self._next.items() if address in targets}

    def named(self, address: str) -> bool:
        """Return whether the user gave an address."""
        return address in self._bootstrap

    def due(self, connected: Collection[str]) -> tuple[str, ...]:
        """Return the addresses to dial now, given connected peer ids; mark them as tried."""
        now = self._clock.monotonic()
        for address in (*self._bootstrap, *self._remembered):
            if peer_of(address) in connected:
                self._next.pop(address, None)
                if address in self._remembered:
                    self._next[address] = now + LOST_SECONDS, FIRST_SECONDS
        bootstrap = [a for a in self._bootstrap if self._is_due(a, connected, now)]
        cached = [a for a in self._remembered if self._is_due(a, connected, now)]
        # The address tried longest ago comes first, so that each has its turn.
        cached.sort(key=lambda address: self._next.get(address, (0.0, 0.0))[0])
        ready = bootstrap + (cached[:AT_A_TIME] if connected else cached)
        for address in ready:
            _, pause = self._next.get(address, (now, FIRST_SECONDS))
            longest = LONGEST_FOR_BOOTSTRAP if address in self._bootstrap else LONGEST_SECONDS
            self._next[address] = now + pause, min(2 * pause, longest)
        return tuple(ready)

    def _is_due(self, address: str, connected: Collection[str], now: float) -> bool:
        due_at, _ = self._next.get(address, (now, 0.0))
        return peer_of(address) not in connected and due_at <= now


def peer_of(address: str) -> str:
    """Return the peer id that a full multiaddress ends in, or an empty string."""
    return address.rpartition("/p2p/")[2] if "/p2p/" in address else ""


MAX_ADDRESSES = 64
MOST_EACH = 4
MAX_FILE_BYTES = 1 << 16


class PeerCache:
    """A file of full multiaddresses, one per line, most useful first (or no file)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._addresses: dict[str, None] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    def load(self) -> tuple[str, ...]:
        """Read the file; a missing file is empty, and so is a damaged one (warning)."""
        if self._path is None or not self._path.exists():
            return ()
        try:
            if self._path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
            lines = self._path.read_text(encoding="ascii").splitlines()
            if not all(line.startswith("/") for line in lines):
                raise ValueError("not a list of multiaddresses")
        except (OSError, ValueError) as error:
            logger.warning("peer cache %s is unreadable (%s); starting without", self._path, error)
            return ()
        self._addresses = dict.fromkeys(lines[:MAX_ADDRESSES])
        return self.addresses

    def meet(self, addresses: Iterable[str]) -> bool:
        """Add peers while there is space, and save; return whether any is new."""
        unseen = [a for a in _few_of_each(addresses) if a not in self._addresses]
        new = unseen[: MAX_ADDRESSES - len(self._addresses)]
        if new:
            self._addresses.update(dict.fromkeys(new))
            self._write()
        return bool(new)

    def remember(
        self, addresses: Iterable[str], reputation: Callable[[str], float] = lambda peer: 0.0
    ) -> None:
        """Add connected peers, known ones first, and write the file atomically.

        Unknown peers are sampled and take at most half of the places from peers met before, so
        Sybil identities cannot fill the file. ``reputation`` returns the reputation of a peer id.
        """
        current = list(_few_of_each(addresses))
        older = [a for a in self._addresses if a not in current]
        slots = max(MAX_ADDRESSES // 2, MAX_ADDRESSES - len(older))
        sample = set(random.sample(current, min(slots, len(current))))
        current.sort(key=lambda address: address not in sample)
        candidates = [*current[: len(sample)], *older, *current[len(sample) :]]
        reputations = {peer: reputation(peer) for peer in {peer_of(a) for a in candidates} if peer}

        def rank(address: str) -> float:
            value = reputations.get(peer_of(address), 0.0)
            return -value if value >= KNOWN else 0.0

        self._addresses = dict.fromkeys(sorted(candidates, key=rank)[:MAX_ADDRESSES])
        self._write()

    def _write(self) -> None:
        if self._path is None or not self._addresses:
            return
        draft = self._path.with_suffix(".new")
        try:
            draft.unlink(missing_ok=True)
            lines = "".join(f"{address}\n" for address in self._addresses)
            make_private(draft).write_text(lines, encoding="ascii")
            replace(draft, self._path)
        except OSError as error:
            logger.warning("peer cache %s was not written: %s", self._path, error)


def _few_of_each(addresses: Iterable[str]) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for address in dict.fromkeys(addresses):
        peer = peer_of(address) or address
        counts[peer] += 1
        if counts[peer] <= MOST_EACH:
            yield address


FIRST_RETRY, LAST_RETRY = 60.0, 3600.0  # seconds between two attempts to prove an address


class AddressProofs:
    """Dials each connected peer where it claims to listen, to learn which claims are true."""

    def __init__(self, dials: DialLimits, clock: Clock) -> None:
        self._dials = dials
        self._tried: Backoff[str] = Backoff(clock, first=FIRST_RETRY, longest=LAST_RETRY)

    async def find(self, node: TransportNode, connected: Mapping[str, Sequence[str]]) -> bool:
        """Try one claim of each peer without a proof; return whether any is true.

        Only a host from which the peer connects is dialed.
        """
        success = False
        for peer, addresses in connected.items():
            if any(map(self._dials.answered, addresses)):
                continue
            claims = [a for a in addresses if not is_relayed(a) and not self._tried.waits(a)]
            hosts = {host_of(address) for address in await node.seen_at(peer)} if claims else set()
            claim = next((address for address in claims if host_of(address) in hosts), "")
            if claim:
                self._tried.failed(claim)
                success |= await self._proved(claim)
        return success

    async def _proved(self, address: str) -> bool:
        try:
            return await self._dials.prove(*place_in(address))
        except (NoPeer, OSError) as error:
            logger.debug("a peer does not answer at %s: %s", address, error)
            return False


SETTLED_SECONDS = 20.0  # by then, both ends of a connection know their observed addresses
AGAIN_SECONDS = 1800.0  # between two attempts with a peer: maximum lifetime of a relayed connection


class Shortcuts:
    """Relayed peers to reconnect directly: each once, by one end, after it settled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._tried: dict[str, float] = {}

    def due(self, own: str, connected: Mapping[str, Sequence[str]]) -> str:
        """Return the peer to disconnect and redial now, marked as tried, or empty."""
        now = self._clock.monotonic()
        relayed = [peer for peer, link in links_of(connected).items() if link == "relayed"]
        self._since = {peer: self._since.get(peer, now) for peer in relayed}
        self._tried = {p: time for p, time in self._tried.items() if now - time < AGAIN_SECONDS}
        # Only one end acts, because the other end is being dialed.
        candidates = (peer for peer in relayed if own < peer and peer not in self._tried)
        peer = next((p for p in candidates if now - self._since[p] >= SETTLED_SECONDS), "")
        if peer:
            self._tried[peer] = now
        return peer


PING = "DHTProtocol.rpc_ping"
# Field of the answer: the peer's clock, a double in unix seconds (docs/protocol.md, "DHT").
CLOCK_FIELD = 4
EVERY_SECONDS = 60.0  # between two measurements of one peer: about 300 bytes each way
END_OF_TIME = 2.0**33  # unix seconds, in the year 2242


class Timings:
    """Timings of connected peers, measured one at a time, oldest first."""

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self.latest: Mapping[str, Timing] = {}  # of peers that answered last time, by peer id
        self._clock = clock
        self._counters = counters
        self._asked: dict[str, float] = {}

    def due(self, connected: Collection[str]) -> str:
        """Return the peer to measure now, marked as asked, or empty; drop lost peers."""
        now = self._clock.monotonic()
        self._asked = {peer: self._asked.get(peer, -math.inf) for peer in connected}
        self.latest = {peer: timing for peer, timing in self.latest.items() if peer in self._asked}
        peer = min(self._asked, key=self._asked.__getitem__, default="")
        if not peer or now - self._asked[peer] < EVERY_SECONDS:
            return ""
        self._asked[peer] = now
        return peer

    async def measure(self, node: TransportNode, peer: str) -> None:
        """Call a peer and store its timing; drop the timing if it does not answer."""
        sent_at, start = self._clock.time(), self._clock.monotonic()
        try:
            answer = protobuf.decode(await node.call(peer, PING, b""))
            peer_time = answer.get(CLOCK_FIELD, [math.nan])[-1]
            if not isinstance(peer_time, float) or not 0.0 <= peer_time < END_OF_TIME:
                raise ValueError(f"its clock says {peer_time!r}, no unix time")
        except (TransportError, ValueError, OSError, EOFError) as error:
            self._counters.add("pings_unanswered")
            logger.debug("peer %s does not report its clock: %s", peer, error)
            self.latest = {other: timing for other, timing in self.latest.items() if other != peer}
            return
        elapsed = self._clock.monotonic() - start
        if peer in self._asked:  # the peer may be gone by now
            self.latest = {**self.latest, peer: Timing(elapsed, peer_time - sent_at - elapsed / 2)}


REMEMBERED = 4096  # unreachable addresses, mostly chosen by peers; when full, the set is cleared


class DialLog:
    """A log of dials that reports each unreachable address once."""

    def __init__(self) -> None:
        self._unreachable: set[str] = set()

    def failed(self, address: str, error: BaseException, *, reached: bool) -> None:
        """Log a failed dial; ``reached``: others that were dialed with it answered."""
        if address in self._unreachable:
            return
        if len(self._unreachable) >= REMEMBERED:
            self._unreachable.clear()
        self._unreachable.add(address)
        # If other peers answer, this peer's clock is the wrong one.
        level = logging.WARNING if isinstance(error, ClockSkew) and reached else logging.INFO
        logger.log(level, "%s; the node keeps dialing", error)

    def answered(self, address: str, peer: str) -> None:
        """Log that a peer answers again."""
        if address in self._unreachable:
            logger.info("peer %s answers again at %s", peer, address)
            self._unreachable.discard(address)


BACKOFF = "dial backoff"
NO_ADDRESS = "no good addresses"
RELAY = "error opening relay circuit: "
RELAYS = {
    "NO_RESERVATION": "the relay does not relay for it any more; join through another peer",
    "RESOURCE_LIMIT_EXCEEDED": "the relay is full; join through another peer",
}
MAX_REASONS = 1024


class DialReasons:
    """Readable reasons for p2pd's dial errors.

    While p2pd pauses between attempts at an address, it reports only the pause. The last real
    error of each address is therefore remembered.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def of(self, address: str, error: Exception) -> str:
        """Return the reason in one line."""
        text = str(error) or type(error).__name__
        if BACKOFF in text:
            return self._last.get(address, "not reached lately")
        if RELAY in text:
            status, *_ = [*text.partition(RELAY)[2].split(), ""]
            reason = RELAYS.get(status, "the relay does not reach it")
        elif NO_ADDRESS in text:
            reason = "the name is unknown, or no address of this kind can be dialed"
        else:
            # p2pd lists its attempts as "* [address] dial tcp4 ADDRESS: connect: REASON".
            _, _, attempt = text.partition("] ")
            line = (attempt or text).splitlines()[0]
            reason = line.rpartition("connect: ")[2].rpartition("msg=")[2]
        self._last.pop(address, None)
        if len(self._last) >= MAX_REASONS:
            del self._last[next(iter(self._last))]
        self._last[address] = reason
        return reason

    def forget(self, address: str) -> None:
        """Record that the address answered."""
        self._last.pop(address, None)
