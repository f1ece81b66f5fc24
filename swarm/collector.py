"""Takes from the swarm: finds announcements, picks frames, pulls them and has them admitted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from protocol.announcement import Offer
from swarm.accounts import Accounts
from swarm.counters import Counters
from swarm.directory import Directory
from swarm.exchange import Exchange, WrongContent
from swarm.pool import Pool
from swarm.pooled_group import PooledGroup
from swarm.transport import ResponseTooLarge, TooSlow, Transport, TransportError

logger = logging.getLogger(__name__)

REMEMBERED_FRAMES = 16_384
ATTEMPTS = 3

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
    """

    gossip_peers: int = 3
    pulls_per_epoch: int = 16
    concurrent_pulls: int = 8
    uninformative: bool = False


class Admission(Protocol):
    """What decides which groups of a frame are let in."""

    async def admit(self, frame: bytes, expected_author: bytes) -> list[PooledGroup]:
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
        self._pulls_left = 0
        self._attempts: OrderedDict[bytes, int] = OrderedDict()
        self._pulling: dict[bytes, asyncio.Task[None]] = {}
        self._failures: list[Exception] = []

    async def gossip(self) -> None:
        """Once an epoch, ask a few random peers what they have heard.

        It covers a hash table that is eclipsed, partitioned or absent.
        """
        peers = self._transport.peers()
        if not peers or self._gossip_epoch == self._directory.epoch:
            return
        self._gossip_epoch = self._directory.epoch
        asked = self._rng.sample(peers, min(self._limits.gossip_peers, len(peers)))
        answers = await asyncio.gather(*map(self._ask, asked))
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
            self._pulls_left = self._limits.pulls_per_epoch
        await self._directory.read()
        for author, offer in self._choose():
            self._note(offer.content_id, self._attempts.get(offer.content_id, 0) + 1)
            self._pulls_left -= 1
            self._pulling[author] = asyncio.create_task(self._pull(author, offer))

    async def settle(self) -> None:
        """Wait for every pull under way; raises as :meth:`look` does."""
        while self._pulling:
            await asyncio.gather(*self._pulling.values())
        self._raise_failure()

    async def close(self) -> None:
        """Drop every pull under way."""
        tasks = list(self._pulling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, peer: str) -> list[bytes]:
        try:
            return await self._exchange.gossip(peer)
        except TransportError as error:
            self._counters.add("gossip_failed", reason=error.code)
            logger.debug("gossip with %s: %s", peer, error)
            return []

    def _choose(self) -> list[tuple[bytes, Offer]]:
        """New offers, one from each author in a drawn order, as many as may be pulled now."""
        places = min(self._limits.concurrent_pulls - len(self._pulling), self._pulls_left)
        candidates = [
            (known.author, offers[0])
            for known in self._directory.known()
            if known.author != self._directory.identity.author
            and known.author not in self._pulling
            and (offers := self._new(known.announcement.offers))
            and not self._accounts.banned(known.author)
        ]
        self._rng.shuffle(candidates)
        return candidates[: max(0, places)]

    def _new(self, offers: Iterable[Offer]) -> list[Offer]:
        """Offers worth a pull, the most informative first.

        A frame whose claimed rewards do not differ in any group can teach nothing and is left
        alone: its groups have no advantage if the claim is true, and are refused if it is not.
        """
        fresh = [
            offer
            for offer in offers
            if (offer.informative or self._limits.uninformative)
            and self._attempts.get(offer.content_id, 0) < ATTEMPTS
        ]
        return sorted(fresh, key=lambda offer: (-offer.informative, offer.content_id))

    async def _pull(self, author: bytes, offer: Offer) -> None:
        try:
            frame = await self._exchange.pull(author, offer.content_id, offer.size)
            self._note(offer.content_id, ATTEMPTS)
            admitted = await self._admission.admit(frame, author)
            pooled = self._pool.add(admitted)
            self._counters.add("frames_pulled")
            self._counters.add("groups_pooled", pooled)
        except TransportError as error:
            self._counters.add("pulls_failed", reason=error.code)
            logger.info("pulling from %s: %s", author.hex()[:16], error)
            if isinstance(error, AUTHORS_FAULT):
                self._note(offer.content_id, ATTEMPTS)
                self._accounts.refuse(author, error.code)
        except Exception as error:  # noqa: BLE001 - handed on by look() and settle()
            self._failures.append(error)
        finally:
            del self._pulling[author]

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop(0)

    def _note(self, content_id: bytes, attempts: int) -> None:
        self._attempts[content_id] = attempts
        self._attempts.move_to_end(content_id)
        if len(self._attempts) > REMEMBERED_FRAMES:
            self._attempts.popitem(last=False)
