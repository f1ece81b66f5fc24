"""The receiving half of a member: finds announcements, pulls frames and has them admitted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import islice

from protocol.announcement import Offer
from protocol.messages import MAX_GOSSIP
from swarm.admission import Admission
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import KEPT, KNOWN, Backoff, author_or_none, lot
from swarm.common.util import cancel_all
from swarm.directory import Directory, Known
from swarm.exchange import Exchange, WrongContent
from swarm.pool import Pool
from swarm.reputation import Accounts
from swarm.transport.transport import (
    MINIMUM_RATE,
    ResponseTooLarge,
    TooSlow,
    Transport,
    TransportError,
)

logger = logging.getLogger(__name__)

TRIES = 4  # multiple of ``pulls``: tries per time slot with unknown authors, failed or not
REMEMBERED_FRAMES = 16_384
ATTEMPTS = 3

# Multiple of the pulls per time slot. A member that knows so many authors with something to pull
# needs no more of them. It still requests ``FEW`` announcements by gossip. Otherwise peers that
# fill its DHT shards would alone decide which authors it knows.
PLENTY = 2
FEW = 16

# An author that does not deliver is skipped for a quarter of a time slot, or ``LEAST_PAUSE``
# seconds if longer. The pause doubles up to ``LONGEST_PAUSE`` times that.
LEAST_PAUSE = 4.0
LONGEST_PAUSE = 64.0

STRANGERS_RATE = 16_384.0  # minimum bytes per second, so unknown authors occupy a pull briefly

AUTHORS_FAULT = (WrongContent, ResponseTooLarge, TooSlow)  # the author's fault; not retried


class PullAllowance:
    """A time slot's ``pulls`` and the maximum of ``concurrent`` ones.

    A quarter of both is reserved for authors known to be useful, as far as there are so many. A
    pull that brings nothing is given back.
    """

    def __init__(self, pulls: int, concurrent: int) -> None:
        self._pulls = pulls
        self._concurrent = concurrent
        self._running: set[bytes] = set()
        self._served: set[bytes] = set()
        self._left = 0
        self._tries = 0

    def begin(self) -> None:
        """Start a new time slot with all pulls available, less those in progress."""
        self._left = self._pulls - len(self._running)
        self._tries = TRIES * self._pulls
        self._served.clear()

    @property
    def spent(self) -> bool:
        """Whether no pull from any author may start now."""
        return self._left <= 0 or len(self._running) >= self._concurrent

    def allows(self, author: bytes, useful: Collection[bytes]) -> bool:
        """Return whether a pull may start; ``useful`` are announcing, useful authors."""
        if author in useful:
            return not self.spent
        waiting_count = sum(a not in self._served and a not in self._running for a in useful)
        reserved_pulls = min(int(self._pulls * KEPT), waiting_count)
        reserved_slots = min(int(self._concurrent * KEPT), waiting_count)
        free_slots = self._concurrent - len(self._running)
        return self._tries > 0 and self._left > reserved_pulls and free_slots > reserved_slots

    def take(self, author: bytes, useful: Collection[bytes]) -> bool:
        """Start a pull from ``author`` if it may start; return whether it did."""
        if not self.allows(author, useful):
            return False
        self._running.add(author)
        self._left -= 1
        self._tries -= author not in useful
        return True

    def end(self, author: bytes, *, delivered: bool) -> None:
        self._running.remove(author)
        if delivered:
            self._served.add(author)
        else:
            self._left += 1


class WantedOffers:
    """Remembers attempted offers by author, and selects among the rest.

    Results of the same frame from another author do not count, or an author could announce it to
    keep all nodes from pulling it. ``secret`` gives each node its own order among equal offers.
    """

    def __init__(self, secret: bytes, *, uninformative: bool, blind: bool) -> None:
        self._secret = secret
        self._all = uninformative or blind
        self._blind = blind
        self._attempts: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()

    def among(self, author: bytes, offers: Iterable[Offer]) -> Iterator[Offer]:
        """Return the offers worth a pull: groups of equal rewards have no advantage."""
        return (
            offer
            for offer in offers
            if (offer.informative or self._all)
            and self._attempts.get((author, offer.content_id), 0) < ATTEMPTS
        )

    def best(self, author: bytes, offers: Iterable[Offer]) -> Offer:
        """Return the most informative of the offers worth a pull; one must exist."""
        sign = 0 if self._blind else -1

        def rank(offer: Offer) -> tuple[int, float]:
            return sign * offer.informative, lot(self._secret, offer.content_id)

        return min(self.among(author, offers), key=rank)

    def try_once(self, author: bytes, offer: Offer) -> None:
        """Count an attempt; after :data:`ATTEMPTS` the offer is no longer wanted."""
        self._note(author, offer, self._attempts.get((author, offer.content_id), 0) + 1)

    def drop(self, author: bytes, offer: Offer) -> None:
        """Stop wanting an offer: it is here, or cannot be obtained."""
        self._note(author, offer, ATTEMPTS)

    def _note(self, author: bytes, offer: Offer, attempts: int) -> None:
        key = author, offer.content_id
        self._attempts[key] = attempts
        self._attempts.move_to_end(key)
        if len(self._attempts) > REMEMBERED_FRAMES:
            self._attempts.popitem(last=False)


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """Limits on a member's requests to peers."""

    gossip_peers: int = 3  # random peers asked for announcements per time slot
    pulls_per_epoch: int = 16  # maximum frames pulled per time slot
    concurrent_pulls: int = 8  # maximum pulls at a time, one per author
    uninformative: bool = False  # also pull frames in which no group's claimed rewards differ
    blind: bool = False  # pull frames independent of their claims, for a fair sample
    named: frozenset[str] = frozenset()  # peers of which one is asked if no useful one is connected


@dataclass(eq=False, repr=False)
class Collector:
    """The receiving half of a member; a seeded ``rng`` makes its choices repeatable."""

    _transport: Transport
    _directory: Directory
    _exchange: Exchange
    _admission: Admission
    _pool: Pool
    _accounts: Accounts
    _counters: Counters
    _limits: CollectorLimits
    _rng: random.Random
    _clock: Clock

    def __post_init__(self) -> None:
        limits, epoch_seconds = self._limits, self._directory.manifest.epoch_seconds
        self._gossip_epoch = self._pull_epoch = -1
        # A separate generator, so choosing among peers does not change the order of authors.
        self._peer_rng = copy(self._rng)
        secret = copy(self._rng).randbytes(16)
        self._wanted = WantedOffers(secret, uninformative=limits.uninformative, blind=limits.blind)
        self._pulling: dict[bytes, asyncio.Task[None]] = {}
        self._allowance = PullAllowance(limits.pulls_per_epoch, limits.concurrent_pulls)
        pause = max(epoch_seconds / 4, LEAST_PAUSE)
        longest = LONGEST_PAUSE * pause
        self._silent_authors: Backoff[bytes] = Backoff(self._clock, first=pause, longest=longest)
        self._silent_peers: Backoff[str] = Backoff(self._clock, first=4 * pause, longest=longest)
        self._failure: Exception | None = None
        self._closed = False

    async def gossip(self) -> None:
        """Ask some peers for announcements, once per slot: the DHT may be partitioned."""
        peers = self._transport.peers()
        if not peers or self._gossip_epoch == self._directory.epoch:
            return
        self._gossip_epoch = self._directory.epoch
        threshold = PLENTY * self._limits.pulls_per_epoch
        enough = sum(1 for _ in islice(self._pullable(), threshold)) >= threshold
        limit = FEW if enough else MAX_GOSSIP
        targets = self._peers_to_ask(peers)
        answers = await asyncio.gather(*(self._ask(peer, limit) for peer in targets))
        for record in (record for records in answers for record in records):
            if self._directory.accept(record) is not None:
                self._counters.add("announcements_by_gossip")

    async def look(self) -> None:
        """Read the directory and start pulls; raise failures inside this node."""
        self._raise_failure()
        if self._pull_epoch != self._directory.epoch:
            self._pull_epoch = self._directory.epoch
            self._allowance.begin()
        await self._directory.read()
        self._directory.watch(self._hear)
        self._start_pulls()

    async def settle(self) -> None:
        """Wait for every pull in progress; raise the same as :meth:`look`."""
        while self._pulling:
            await asyncio.gather(*self._pulling.values())
        self._raise_failure()

    async def close(self) -> None:
        self._closed = True
        await cancel_all(self._pulling.values())

    def _hear(self, record: bytes) -> None:
        with self._failure_kept("hear"):
            if self._directory.accept(record) is not None and not self._closed:
                self._counters.add("announcements_by_store")
                self._start_pulls()

    def _peers_to_ask(self, peers: tuple[str, ...]) -> list[str]:
        """Sample peers that are not silent, one of them useful, or else named, if there is any."""
        count = min(self._limits.gossip_peers, len(peers))
        targets = [p for p in self._rng.sample(peers, count) if not self._silent_peers.waits(p)]
        unsampled = [p for p in peers if p not in targets and not self._silent_peers.waits(p)]
        targets += self._peer_rng.sample(unsampled, min(count - len(targets), len(unsampled)))
        eligible = [*targets, *unsampled]
        preferred = [p for p in eligible if self._is_useful(p)]
        preferred = preferred or [p for p in eligible if p in self._limits.named]
        if targets and preferred and not set(preferred).intersection(targets):
            targets[-1] = self._peer_rng.choice(preferred)
        return targets

    def _is_useful(self, peer: str) -> bool:
        author = author_or_none(peer)
        return author is not None and self._accounts.reputation(author) >= KNOWN

    async def _ask(self, peer: str, limit: int) -> list[bytes]:
        try:
            records = await self._exchange.gossip(peer, limit)
        except TransportError as error:
            self._counters.add("gossip_failed", reason=error.code)
            pause = self._silent_peers.failed(peer)
            logger.info("gossip with %s: %s; next request in %g s", peer, error, pause)
            return []
        self._silent_peers.succeeded(peer)
        return records

    def _start_pulls(self) -> None:
        candidates = list(self._pullable())
        self._rng.shuffle(candidates)
        useful = self._directory.useful()
        for entry in candidates:
            author = entry.author
            if self._allowance.spent:
                break
            # In this order, so Sybil identities cause journal lookups only while a pull is allowed.
            if not self._allowance.allows(author, useful) or self._accounts.banned(author):
                continue
            self._allowance.take(author, useful)
            offer = self._wanted.best(author, entry.announcement.offers)
            self._wanted.try_once(author, offer)
            rate = MINIMUM_RATE if author in useful else STRANGERS_RATE
            self._pulling[author] = asyncio.create_task(self._pull(author, offer, rate))

    def _pullable(self) -> Iterator[Known]:
        return (
            entry
            for entry in self._directory.known()
            if entry.author != self._directory.identity.author
            and entry.author not in self._pulling
            and not self._silent_authors.waits(entry.author)
            and any(self._wanted.among(entry.author, entry.announcement.offers))
        )

    async def _pull(self, author: bytes, offer: Offer, minimum_rate: float) -> None:
        delivered = False
        with self._failure_kept("pull"):
            try:
                frame = await self._exchange.pull(
                    author, offer.content_id, offer.size, minimum_rate
                )
                delivered = True
                self._silent_authors.succeeded(author)
                self._wanted.drop(author, offer)
                groups = await self._admission.admit(frame, author, offer)
                self._counters.add("groups_pooled", self._pool.add(groups))
                self._counters.add("frames_pulled")
            except TransportError as error:
                self._pull_failed(author, offer, error)
            finally:
                del self._pulling[author]
                self._allowance.end(author, delivered=delivered)
            if not delivered and not self._closed:
                self._start_pulls()

    def _pull_failed(self, author: bytes, offer: Offer, error: TransportError) -> None:
        self._counters.add("pulls_failed", reason=error.code)
        pause = self._silent_authors.failed(author)
        logger.info("pulling from %s: %s; next request in %g s", author.hex()[:16], error, pause)
        if isinstance(error, AUTHORS_FAULT):
            self._wanted.drop(author, offer)
            self._accounts.refuse(author, error.code)

    @contextmanager
    def _failure_kept(self, turn: str) -> Iterator[None]:
        """Keep a failure inside this node for :meth:`look` and :meth:`settle` to raise."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised later
            self._counters.add("member_failures", turn=turn)
            # One is enough: without the journal, every pull and every incoming record fails.
            self._failure = self._failure or error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
