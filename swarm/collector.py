"""Takes from the swarm: finds announcements, picks frames, pulls them and has them admitted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from protocol.announcement import Offer
from protocol.errors import BadKey
from protocol.identity import author_of
from protocol.messages import MAX_GOSSIP
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import KEPT, KNOWN, Backoff, lot
from swarm.directory import Directory, Known
from swarm.exchange import Exchange, WrongContent
from swarm.groups import PooledGroup
from swarm.pool import Pool
from swarm.reputation import Accounts
from swarm.transport.transport import (
    MINIMUM_RATE,
    ResponseTooLarge,
    TooSlow,
    Transport,
    TransportError,
)

TRIES = 4
"""Times the pulls of an epoch that may be begun for strangers, counting those that fail."""


class PullAllowance:
    """An epoch's pulls and the places for those under way.

    A quarter of both is kept for the authors known to be useful, as far as there are so many. A
    pull that brings nothing is given back.

    Args:
        pulls: that bring something, each epoch at most.
        concurrent: under way at a time.
    """

    def __init__(self, pulls: int, concurrent: int) -> None:
        self._pulls = pulls
        self._concurrent = concurrent
        self._running: set[bytes] = set()
        self._served: set[bytes] = set()
        self._left = 0
        self._tries = 0

    def begin(self) -> None:
        """A new epoch: everything may be pulled again, less what is under way."""
        self._left = self._pulls - len(self._running)
        self._tries = TRIES * self._pulls
        self._served.clear()

    @property
    def spent(self) -> bool:
        """Whether no pull from anybody may begin now."""
        return self._left <= 0 or len(self._running) >= self._concurrent

    def allows(self, author: bytes, useful: Collection[bytes]) -> bool:
        """Whether a pull from ``author`` may begin.

        Args:
            useful: authors known to be useful who announce something.
        """
        known = author in useful
        kept_pulls = kept_places = 0
        if not known:
            waiting = sum(a not in self._served and a not in self._running for a in useful)
            kept_pulls = min(int(self._pulls * KEPT), waiting)
            kept_places = min(int(self._concurrent * KEPT), waiting)
            if self._tries <= 0:
                return False
        return self._left > kept_pulls and len(self._running) < self._concurrent - kept_places

    def take(self, author: bytes, useful: Collection[bytes]) -> bool:
        """Whether a pull from ``author`` may begin, which thereby does."""
        if not self.allows(author, useful):
            return False
        self._running.add(author)
        self._left -= 1
        self._tries -= author not in useful
        return True

    def end(self, author: bytes, *, delivered: bool) -> None:
        """Note that a pull is over."""
        self._running.remove(author)
        if delivered:
            self._served.add(author)
        else:
            self._left += 1


REMEMBERED_FRAMES = 16_384
ATTEMPTS = 3


class WantedOffers:
    """Remembers what was asked for, by author, and chooses among what is left.

    What became of the same frame at another author does not count: whoever announces somebody
    else's frame would keep it from everybody.

    Args:
        secret: gives each node an order of its own among equals, or all would pull the same and
            leave the rest.
        uninformative: want even frames in which no group's claimed rewards differ.
        blind: want frames whatever they claim.
    """

    def __init__(self, secret: bytes, *, uninformative: bool, blind: bool) -> None:
        self._secret = secret
        self._all = uninformative or blind
        self._blind = blind
        self._attempts: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()

    def among(self, author: bytes, offers: Iterable[Offer]) -> Iterator[Offer]:
        """Those that are worth a pull.

        A frame whose claimed rewards do not differ in any group can teach nothing and is left
        alone: its groups have no advantage if the claim is true, and are refused if it is not.
        """
        return (
            offer
            for offer in offers
            if (offer.informative or self._all)
            and self._attempts.get((author, offer.content_id), 0) < ATTEMPTS
        )

    def best(self, author: bytes, offers: Iterable[Offer]) -> Offer:
        """The most informative of those that are worth a pull; there is one."""
        sign = 0 if self._blind else -1
        return min(
            self.among(author, offers),
            key=lambda o: (sign * o.informative, lot(self._secret, o.content_id)),
        )

    def try_once(self, author: bytes, offer: Offer) -> None:
        """Count an attempt: after :data:`ATTEMPTS` it is wanted no more."""
        self._note(author, offer, self._attempts.get((author, offer.content_id), 0) + 1)

    def drop(self, author: bytes, offer: Offer) -> None:
        """Want it no more: it is here, or can never be had."""
        self._note(author, offer, ATTEMPTS)

    def _note(self, author: bytes, offer: Offer, attempts: int) -> None:
        key = author, offer.content_id
        self._attempts[key] = attempts
        self._attempts.move_to_end(key)
        if len(self._attempts) > REMEMBERED_FRAMES:
            self._attempts.popitem(last=False)


logger = logging.getLogger(__name__)

PLENTY = 2
"""Times the pulls of an epoch: a member that knows of so many authors with something to pull needs
no more of them, and asks for :data:`FEW` announcements all the same, lest whoever fills its shards
of the hash table decides alone whom it knows."""
FEW = 16

LEAST_PAUSE = 4.0
LONGEST_PAUSE = 64.0
"""An author that does not deliver is left alone for a quarter of an epoch, or ``LEAST_PAUSE``
seconds, then twice as long and so on, up to ``LONGEST_PAUSE`` times that."""

STRANGERS_RATE = 16_384.0
"""Bytes a second asked of authors not known to be useful: a place is theirs for seconds only."""

AUTHORS_FAULT = (WrongContent, ResponseTooLarge, TooSlow)
"""What an author who serves its own frame can be blamed for, and what is not tried again."""


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """How much one member asks of others.

    Attributes:
        gossip_peers: random peers asked for announcements each epoch.
        pulls_per_epoch: frames pulled each epoch at most.
        concurrent_pulls: at a time, one from each author.
        uninformative: pull even frames in which no group's claimed rewards differ.
        blind: pull frames whatever they claim: what is found is a fair sample of what is offered.
    """

    gossip_peers: int = 3
    pulls_per_epoch: int = 16
    concurrent_pulls: int = 8
    uninformative: bool = False
    blind: bool = False


class Admission(Protocol):
    """What decides which groups of a frame are let in."""

    async def admit(self, frame: bytes, expected_author: bytes, offer: Offer) -> list[PooledGroup]:
        """The groups that pass; refusals are counted and charged inside."""
        ...


class Collector:
    """The taking half of a member.

    Args:
        rng: draws gossip peers and the order of authors; seeded, it makes a run repeatable.
    """

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        exchange: Exchange,
        admission: Admission,
        pool: Pool,
        accounts: Accounts,
        counters: Counters,
        limits: CollectorLimits,
        rng: random.Random,
        clock: Clock,
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._exchange = exchange
        self._admission = admission
        self._pool = pool
        self._accounts = accounts
        self._counters = counters
        self._limits = limits
        self._rng = rng
        self._gossip_epoch = -1
        self._pull_epoch = -1
        # So that a choice among peers leaves the order of authors as it is.
        self._spare = copy(rng)
        self._wanted = WantedOffers(
            copy(rng).randbytes(16), uninformative=limits.uninformative, blind=limits.blind
        )
        self._pulling: dict[bytes, asyncio.Task[None]] = {}
        self._allowance = PullAllowance(limits.pulls_per_epoch, limits.concurrent_pulls)
        pause = max(directory.manifest.epoch_seconds / 4, LEAST_PAUSE)
        self._silent: Backoff[bytes] = Backoff(clock, first=pause, longest=LONGEST_PAUSE * pause)
        self._mute: Backoff[str] = Backoff(clock, first=4 * pause, longest=LONGEST_PAUSE * pause)
        self._failures: list[Exception] = []
        self._closed = False

    async def gossip(self) -> None:
        """Once an epoch, ask a few random peers what they have heard.

        It covers a hash table that is eclipsed, partitioned or absent.
        """
        peers = self._transport.peers()
        if not peers or self._gossip_epoch == self._directory.epoch:
            return
        self._gossip_epoch = self._directory.epoch
        plenty = PLENTY * self._limits.pulls_per_epoch
        enough = sum(1 for _ in islice(self._pullable(), plenty)) >= plenty
        limit = FEW if enough else MAX_GOSSIP
        asked = self._whom_to_ask(peers)
        answers = await asyncio.gather(*(self._ask(peer, limit) for peer in asked))
        for record in (record for records in answers for record in records):
            if self._directory.accept(record) is not None:
                self._counters.add("announcements_by_gossip")

    async def look(self) -> None:
        """Read the directory and start what pulls the limits allow.

        Raises:
            Exception: what failed inside this node, here or in a pull; failures of peers are
                counted instead.
        """
        self._raise_failure()
        if self._pull_epoch != self._directory.epoch:
            self._pull_epoch = self._directory.epoch
            self._allowance.begin()
        await self._directory.read()
        self._directory.watch(self._hear)
        self._start_pulls()

    async def settle(self) -> None:
        """Wait for every pull under way; raises as :meth:`look` does."""
        while self._pulling:
            await asyncio.gather(*self._pulling.values())
        self._raise_failure()

    async def close(self) -> None:
        """Drop every pull under way."""
        self._closed = True
        tasks = list(self._pulling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hear(self, record: bytes) -> None:
        """Take what comes in between two looks, and pull what the present one has left to pull."""
        try:
            if self._directory.accept(record) is not None and not self._closed:
                self._counters.add("announcements_by_store")
                self._start_pulls()
        except Exception as error:  # noqa: BLE001 - handed on by look() and settle()
            self._counters.add("member_failures", turn="hear")
            # One is enough: with a journal that is gone, every record that comes in fails.
            self._failures = self._failures or [error]

    def _whom_to_ask(self, peers: tuple[str, ...]) -> list[str]:
        """Random peers but those that did not answer lately; one known to be useful, if any is."""
        count = min(self._limits.gossip_peers, len(peers))
        asked = [p for p in self._rng.sample(peers, count) if not self._mute.waits(p)]
        others = [p for p in peers if p not in asked and not self._mute.waits(p)]
        asked += self._spare.sample(others, min(count - len(asked), len(others)))
        known = [p for p in others if p not in asked and self._knows(p)]
        if asked and known and not any(map(self._knows, asked)):
            asked[-1] = self._spare.choice(known)
        return asked

    def _knows(self, peer: str) -> bool:
        try:
            return self._accounts.standing(author_of(peer)) >= KNOWN
        except BadKey:
            return False

    async def _ask(self, peer: str, limit: int) -> list[bytes]:
        try:
            records = await self._exchange.gossip(peer, limit)
        except TransportError as error:
            self._counters.add("gossip_failed", reason=error.code)
            pause = self._mute.failed(peer)
            logger.info("gossip with %s: %s; not asked for %g s", peer, error, pause)
            return []
        self._mute.succeeded(peer)
        return records

    def _start_pulls(self) -> None:
        """Begin as many pulls as may be begun now, one from each author in a drawn order."""
        candidates = list(self._pullable())
        self._rng.shuffle(candidates)
        useful = self._directory.useful()
        for known in candidates:
            author = known.author
            if self._allowance.spent:
                break
            # In this order: a crowd of strangers is asked after in the journal only while there is
            # room for one.
            if not self._allowance.allows(author, useful) or self._accounts.banned(author):
                continue
            self._allowance.take(author, useful)
            offer = self._wanted.best(author, known.announcement.offers)
            self._wanted.try_once(author, offer)
            rate = MINIMUM_RATE if author in useful else STRANGERS_RATE
            self._pulling[author] = asyncio.create_task(self._pull(author, offer, rate))

    def _pullable(self) -> Iterator[Known]:
        """Authors that a pull could begin from now."""
        return (
            known
            for known in self._directory.known()
            if known.author != self._directory.identity.author
            and known.author not in self._pulling
            and not self._silent.waits(known.author)
            and any(self._wanted.among(known.author, known.announcement.offers))
        )

    async def _pull(self, author: bytes, offer: Offer, minimum_rate: float) -> None:
        delivered = False
        try:
            frame = await self._exchange.pull(author, offer.content_id, offer.size, minimum_rate)
            delivered = True
            self._silent.succeeded(author)
            self._wanted.drop(author, offer)
            admitted = await self._admission.admit(frame, author, offer)
            pooled = self._pool.add(admitted)
            self._counters.add("frames_pulled")
            self._counters.add("groups_pooled", pooled)
        except TransportError as error:
            self._pull_failed(author, offer, error)
        except Exception as error:  # noqa: BLE001 - handed on by look() and settle()
            self._failures.append(error)
        finally:
            del self._pulling[author]
            self._allowance.end(author, delivered=delivered)
        if not delivered and not self._closed:
            self._start_pulls()

    def _pull_failed(self, author: bytes, offer: Offer, error: TransportError) -> None:
        self._counters.add("pulls_failed", reason=error.code)
        pause = self._silent.failed(author)
        logger.info("pulling from %s: %s; left alone for %g s", author.hex()[:16], error, pause)
        if isinstance(error, AUTHORS_FAULT):
            self._wanted.drop(author, offer)
            self._accounts.refuse(author, error.code)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop(0)
