"""Addresses of peers met before, kept in a file so that a node finds the swarm again."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import KNOWN
from swarm.common.util import make_private
from swarm.transport import protobuf
from swarm.transport.node import Node
from swarm.transport.transport import ClockSkew, Timing, TransportError, links_of

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
LOST_SECONDS = 5.0
"""For a peer met before to come back by itself: one behind a router that starts again dials from
the port that it would be dialled at, and of two who dial each other so, neither gets through."""

LONGEST_FOR_BOOTSTRAP = 10.0
AT_A_TIME = 8
MAX_REMEMBERED = 64


class Redial:
    """Doubling pauses between the attempts at each address, until its peer is connected.

    Bootstrap addresses are dialled whenever their peer is missing. Of peers met before, all are
    dialled while nobody is connected, and otherwise a few at a time: a swarm that was cut in two
    has peers on either side, and its bootstrap peers may be gone by the time that it is whole.
    """

    def __init__(self, bootstrap: Iterable[str], remembered: Iterable[str], clock: Clock) -> None:
        self._bootstrap = tuple(dict.fromkeys(bootstrap))
        self._remembered: dict[str, None] = {}
        self._clock = clock
        self._next: dict[str, tuple[float, float]] = {}
        self.remember(remembered)

    def remember(self, addresses: Iterable[str]) -> None:
        """Peers met, in place of those before; the first ``MAX_REMEMBERED`` of them."""
        wanted = [a for a in dict.fromkeys(addresses) if a not in self._bootstrap]
        self._remembered = dict.fromkeys(wanted[:MAX_REMEMBERED])
        dialled = {*self._bootstrap, *self._remembered}
        self._next = {address: at for address, at in self._next.items() if address in dialled}

    def due(self, connected: Collection[str]) -> tuple[str, ...]:
        """Addresses to dial now, given the peer ids connected; each is thereby taken as tried."""
        now = self._clock.monotonic()
        wanted = [a for a in self._bootstrap if self._waited(a, connected, now)]
        met = [a for a in self._remembered if self._waited(a, connected, now)]
        # Whoever was tried longest ago first, so that each has its turn.
        met.sort(key=lambda address: self._next.get(address, (0.0, 0.0))[0])
        ready = wanted + (met[:AT_A_TIME] if connected else met)
        for address in ready:
            _, pause = self._next.get(address, (now, FIRST_SECONDS))
            self._next[address] = now + pause, min(2 * pause, self._longest(address))
        return tuple(ready)

    def _waited(self, address: str, connected: Collection[str], now: float) -> bool:
        """Whether the peer is missing and its pause is over."""
        if peer_of(address) in connected:
            self._next.pop(address, None)
            if address not in self._bootstrap:
                self._next[address] = now + LOST_SECONDS, FIRST_SECONDS
            return False
        at, _ = self._next.get(address, (now, 0.0))
        return at <= now

    def _longest(self, address: str) -> float:
        return LONGEST_FOR_BOOTSTRAP if address in self._bootstrap else LONGEST_SECONDS


def peer_of(address: str) -> str:
    """The peer id that a full multiaddress ends in; empty when there is none."""
    return address.rpartition("/p2p/")[2] if "/p2p/" in address else ""


logger = logging.getLogger(__name__)

MAX_ADDRESSES = 64
MOST_EACH = 4
MAX_FILE_BYTES = 1 << 16


class PeerCache:
    """Full multiaddresses, one a line, the most useful first; ``path`` None keeps none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._addresses: dict[str, None] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """What is remembered now."""
        return tuple(self._addresses)

    def load(self) -> tuple[str, ...]:
        """What the file holds. A missing file is empty; so is a damaged one, with a warning."""
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
        """Note peers at once, in the places that are free, and write the file; whether any is new.

        Nobody is pushed out for them: who may be is :meth:`remember`'s to say, now and then.
        """
        met = [a for a in _few_of_each(addresses) if a not in self._addresses]
        new = met[: MAX_ADDRESSES - len(self._addresses)]
        if new:
            self._addresses.update(dict.fromkeys(new))
            self._write()
        return bool(new)

    def remember(
        self, addresses: Iterable[str], standing: Callable[[str], float] = lambda peer: 0.0
    ) -> None:
        """Note peers that are connected now and write the file anew, all or nothing.

        Peers of standing come first. A crowd of strangers, some of whom are drawn, takes at most
        half of the places from those who were met before.

        Args:
            standing: of a peer id.
        """
        met = list(_few_of_each(addresses))
        older = [a for a in self._addresses if a not in met]
        places = max(MAX_ADDRESSES // 2, MAX_ADDRESSES - len(older))
        drawn = set(random.sample(met, min(places, len(met))))
        met.sort(key=lambda address: address not in drawn)
        everybody = [*met[: len(drawn)], *older, *met[len(drawn) :]]
        standings = {peer: standing(peer) for peer in {peer_of(a) for a in everybody} if peer}

        def rank(address: str) -> float:
            known = standings.get(peer_of(address), 0.0)
            return -known if known >= KNOWN else 0.0

        self._addresses = dict.fromkeys(sorted(everybody, key=rank)[:MAX_ADDRESSES])
        self._write()

    def _write(self) -> None:
        if self._path is None or not self._addresses:
            return
        draft = self._path.with_suffix(".new")
        try:
            draft.unlink(missing_ok=True)
            make_private(draft).write_text(
                "".join(f"{a}\n" for a in self._addresses), encoding="ascii"
            )
            draft.replace(self._path)
        except OSError as error:
            logger.warning("peer cache %s was not written: %s", self._path, error)


def _few_of_each(addresses: Iterable[str]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for address in dict.fromkeys(addresses):
        peer = peer_of(address) or address
        seen[peer] += 1
        if seen[peer] <= MOST_EACH:
            yield address


SETTLED_SECONDS = 20.0
"""After which both ends of a connection have been told where they are seen."""

AGAIN_SECONDS = 1800.0
"""Between two attempts with a peer: what a relayed connection lives at most."""


class Shortcuts:
    """Each relayed peer once, when its connection has lasted, by one of its two ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._tried: dict[str, float] = {}

    def due(self, own: str, connected: Mapping[str, Sequence[str]]) -> str:
        """The peer to hang up on and to dial again now, thereby taken as tried; empty: none.

        Args:
            own: peer id of this node.
            connected: addresses of the peers connected, by peer id.
        """
        now = self._clock.monotonic()
        relayed = [peer for peer, link in links_of(connected).items() if link == "relayed"]
        self._since = {peer: self._since.get(peer, now) for peer in relayed}
        self._tried = {p: at for p, at in self._tried.items() if now - at < AGAIN_SECONDS}
        # One end alone, for who is hung up on is just being dialled.
        ours = (peer for peer in relayed if own < peer and peer not in self._tried)
        peer = next((p for p in ours if now - self._since[p] >= SETTLED_SECONDS), "")
        if peer:
            self._tried[peer] = now
        return peer


PING = "DHTProtocol.rpc_ping"
CLOCK_FIELD = 4
"""Of the answer: the peer's clock, a double in unix seconds (section 10 of the protocol)."""

EVERY_SECONDS = 60.0
"""Between two measurements of one peer: some 300 bytes each way."""

END_OF_TIME = 2.0**33
"""Unix seconds, in the year 2242."""


class Timings:
    """Measures whoever is connected and was not measured for longest, one at a time.

    Attributes:
        latest: of each connected peer that answered when it was last asked, by peer id.
    """

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self.latest: Mapping[str, Timing] = {}
        self._clock = clock
        self._counters = counters
        self._asked: dict[str, float] = {}

    def due(self, connected: Collection[str]) -> str:
        """The peer to measure now, thereby taken as asked; empty: none. Forgets who is gone."""
        now = self._clock.monotonic()
        self._asked = {peer: self._asked.get(peer, -math.inf) for peer in connected}
        self.latest = {peer: each for peer, each in self.latest.items() if peer in self._asked}
        peer = min(self._asked, key=self._asked.__getitem__, default="")
        if not peer or now - self._asked[peer] < EVERY_SECONDS:
            return ""
        self._asked[peer] = now
        return peer

    async def measure(self, node: Node, peer: str) -> None:
        """Call a peer, and note what that tells; nothing is left of one that does not answer."""
        asked, began = self._clock.time(), self._clock.monotonic()
        try:
            theirs = _clock_in(await node.call(peer, PING, b""))
        except (TransportError, ValueError, OSError, EOFError) as error:
            self._counters.add("pings_unanswered")
            logger.debug("peer %s does not tell its clock: %s", peer, error)
            self.latest = {each: timing for each, timing in self.latest.items() if each != peer}
            return
        took = self._clock.monotonic() - began
        if peer in self._asked:  # it may have gone meanwhile
            self.latest = {**self.latest, peer: Timing(took, theirs - asked - took / 2)}


def _clock_in(answer: bytes) -> float:
    value = protobuf.decode(answer).get(CLOCK_FIELD, [math.nan])[-1]
    if not isinstance(value, float) or not 0.0 <= value < END_OF_TIME:
        raise ValueError(f"its clock says {value!r}, no unix time")
    return value


REMEMBERED = 4096
"""Addresses that did not answer, most of which peers choose; with more, all are told of anew."""


class DialLog:
    """Remembers which addresses it has said not to answer."""

    def __init__(self) -> None:
        self._unreachable: set[str] = set()

    def failed(self, address: str, error: BaseException, *, reached: bool) -> None:
        """Tell of a dial that failed.

        Args:
            reached: others that were dialled with it answered.
        """
        if address in self._unreachable:
            return
        if len(self._unreachable) >= REMEMBERED:
            self._unreachable.clear()
        self._unreachable.add(address)
        # Where others answer, a clock that is wrong is the peer's.
        level = logging.WARNING if isinstance(error, ClockSkew) and reached else logging.INFO
        logger.log(level, "%s; dialling goes on", error)

    def answered(self, address: str, peer: str) -> None:
        """Tell of a peer that is back."""
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
    """Reads p2pd's errors, and remembers by address what the last real attempt met.

    While p2pd pauses between its attempts at an address it answers nothing but that it pauses.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def of(self, address: str, error: Exception) -> str:
        """The reason in one line."""
        text = str(error) or type(error).__name__
        if BACKOFF in text:
            return self._last.get(address, "not reached lately")
        if RELAY in text:
            status, *_ = [*text.partition(RELAY)[2].split(), ""]
            reason = RELAYS.get(status, "the relay does not reach it")
        elif NO_ADDRESS in text:
            reason = "the name is unknown, or no address of this kind can be dialled"
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
        """Note that the address answered."""
        self._last.pop(address, None)
