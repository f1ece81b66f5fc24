"""One member of a swarm: shares its own groups and receives those of peers.

Its halves, :class:`swarm.publisher.Publisher` and :class:`swarm.collector.Collector`, run four
times per time slot, so peers pool a published group within the slot. A group that enters the outbox
is published without waiting for a turn, unless news was published a quarter of a slot before.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from protocol.announcement import Offer, Opener, open_announcement
from protocol.errors import ProtocolError
from protocol.identity import Identity, peer_id_of
from protocol.manifest import swarm_id
from protocol.profile import Profile, sign_profile
from swarm.admission import Admission, RefusedGroups
from swarm.collector import Collector, CollectorLimits
from swarm.common.clock import Clock, within
from swarm.common.counters import ClockWatch, Counters
from swarm.common.fair_limits import Backoff, OwnFirst, author_or_none
from swarm.directory import Density, Directory
from swarm.exchange import MAX_PARALLEL, Exchange, Profiles, fetch_manifest
from swarm.journal import Journal, JournalError
from swarm.pool import Pool
from swarm.publisher import Outbox, Publisher
from swarm.reputation import Accounts, RefusalHeard
from swarm.transport.transport import Reach, Timing, Transport, TransportError, Way

logger = logging.getLogger(__name__)

TURNS_PER_EPOCH = 4
FAILURES_REPORTED = 10
MEETING_SECONDS = 1.0  # between two requests to connected peers for their swarm

Turn = Callable[[], Awaitable[bool | None]]  # returns whether there was news


@dataclass(eq=False, repr=False)
class Acquaintance:
    """Determines connected peers' swarms from the manifests they serve.

    Only a peer that has announced nothing here is asked, once per connection; an unresponsive one
    again after ``pause`` seconds, which doubles. A peer that lies gains nothing.
    """

    _transport: Transport
    _ours: bytes
    _clock: Clock
    _pause: float

    def __post_init__(self) -> None:
        longest = 64 * self._pause
        self._silent: Backoff[str] = Backoff(self._clock, first=self._pause, longest=longest)
        self._swarms: dict[str, bytes] = {}

    async def look(self, is_member: Callable[[str], bool]) -> None:
        """Ask some connected peers for their swarm, unless ``is_member`` of this one."""
        connected = self._transport.peers()
        self._swarms = {p: s for p, s in self._swarms.items() if p in connected}
        unknown = [
            peer
            for peer in connected
            if peer not in self._swarms and not is_member(peer) and not self._silent.waits(peer)
        ]
        await asyncio.gather(*map(self._ask, unknown[:MAX_PARALLEL]))

    def swarm_of(self, peer: str) -> bytes | None:
        """Return the id of a peer's swarm, or None if unknown."""
        return self._swarms.get(peer)

    async def _ask(self, peer: str) -> None:
        try:
            swarm = swarm_id(await fetch_manifest(self._transport, peer))
        except (TransportError, ProtocolError) as error:
            pause = self._silent.failed(peer)
            logger.debug("asking %s for its swarm: %s; next request in %g s", peer, error, pause)
            return
        self._silent.succeeded(peer)
        self._swarms[peer] = swarm
        if swarm != self._ours:
            logger.info("peer %s is in another swarm, %s", peer, swarm.hex()[:16])


@dataclass(frozen=True, slots=True)
class Experience:
    """Storage that a member and its node share."""

    journal: Journal
    pool: Pool  # admitted peer groups, the replay buffer
    outbox: Outbox  # local groups to be shared, and the frames that are served
    accounts: Accounts  # the record of each author
    refused: RefusedGroups = field(default_factory=RefusedGroups)  # recently refused peer groups

    @classmethod
    def around(cls, pool: Pool, heard: RefusalHeard | None = None) -> Self:
        """Combine a replay buffer with an outbox and accounts in the same journal."""
        accounts = Accounts(pool.journal, pool.clock, heard)
        accounts.follow_clock()
        return cls(pool.journal, pool, Outbox(pool.journal, pool.counters), accounts)


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Knowledge of this node about a peer."""

    peer_id: str
    author: bytes | None  # public key; None if the peer's identity is not an Ed25519 key
    connected: bool  # whether there is a connection now
    policy_step: int | None  # as last announced; None if nothing was announced
    groups: int  # groups in the frames it offers
    heard: float  # Unix time of its last announcement or connection, seconds
    swarm: bytes | None = None  # id of its swarm; None while unknown
    link: Way | None = None  # how it is connected, "direct" or "relayed"; None if it is not
    timing: Timing | None = None  # its latency and clock offset; None if not measured
    profile: Profile | None = None  # its unverified description of itself; None if it gives none
    offers: tuple[Offer, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member's status at one time; byte counts are payload since the start."""

    peer_id: str
    swarm_id: bytes
    addresses: tuple[str, ...]
    epoch: int
    peers: tuple[PeerInfo, ...]  # all connected or announced peers, including those of other swarms
    bytes_in: int
    bytes_out: int
    reach: Reach = field(default_factory=Reach)  # whether others can dial this node
    estimated: int | None = None  # authors of the whole swarm, if this node sees only a part

    @property
    def members(self) -> int:
        """Number of peers in this node's swarm."""
        return sum(peer.swarm == self.swarm_id for peer in self.peers)

    @property
    def foreign_peers(self) -> int:
        """Number of connected nodes in another swarm."""
        return sum(peer.swarm not in (None, self.swarm_id) for peer in self.peers)


@dataclass(eq=False, repr=False)
class Member:
    """A member on the network's event loop; if ``quiet``, it announces nothing.

    The learner's thread meets it only in outbox and replay buffer.
    """

    _transport: Transport
    directory: Directory
    exchange: Exchange
    _publisher: Publisher
    _collector: Collector
    _clock: Clock
    _counters: Counters
    _quiet: bool

    def __post_init__(self) -> None:
        transport, clock, counters = self._transport, self._clock, self._counters
        pause, swarm = self.directory.manifest.epoch_seconds, self.directory.swarm_id
        self._failing: dict[str, Exception] = {}
        self._clock_watch = ClockWatch(clock, counters)
        self._acquaintance = Acquaintance(transport, swarm, clock, pause)
        self._profiles = Profiles(transport, swarm, clock, counters, pause)

    @property
    def density(self) -> Density:
        """The node's estimate of its swarm's size."""
        return self.directory.shards.density

    @property
    def failure(self) -> Exception | None:
        """The latest failure inside this node after ten or more in a row, else None."""
        return next(iter(self._failing.values()), None)

    async def step(self) -> None:
        """Run one turn of everything, await each pull and raise this node's failures."""
        if not self._quiet:
            await self._publisher.publish()
        await self._collector.gossip()
        await self._collector.look()
        await self._collector.settle()

    async def run(self) -> None:
        """Take turns until cancelled; a slow peer delays only its own response."""
        publish, turns = self._publisher.publish, (self._collector.gossip, self._collector.look)
        period = self.directory.manifest.epoch_seconds / TURNS_PER_EPOCH
        try:
            with self._publisher.filled.listening() as event:
                publishing = () if self._quiet else (self._repeat(publish, period, event),)
                await asyncio.gather(
                    *publishing,
                    *(self._repeat(turn, period) for turn in turns),
                    self._repeat(self.meet, min(MEETING_SECONDS, period)),
                )
        finally:
            await self._collector.close()

    async def meet(self) -> None:
        """Check the clock; request the swarm of unknown peers and the profiles of members."""
        self._clock_watch.look()
        authors = {entry.author for entry in self.directory.known()}
        swarm, swarm_of = self.directory.swarm_id, self._acquaintance.swarm_of

        def announced(peer: str) -> bool:
            return author_or_none(peer) in authors

        await asyncio.gather(
            self._acquaintance.look(announced),
            self._profiles.look(lambda peer: announced(peer) or swarm_of(peer) == swarm),
        )

    def status(self) -> MemberStatus:
        """Return the status that the monitor shows."""
        return MemberStatus(
            peer_id=self._transport.peer_id,
            swarm_id=self.directory.swarm_id,
            addresses=self._transport.addresses(),
            epoch=self.directory.epoch,
            peers=self._peers(),
            bytes_in=self._transport.bytes_in,
            bytes_out=self._transport.bytes_out,
            reach=self._transport.reach(),
            estimated=self.density.estimated,
        )

    async def _repeat(self, turn: Turn, period: float, early: asyncio.Event | None = None) -> None:
        """Take turns for ever; ``early`` ends a pause, except after news or a failure."""
        name, failures = turn.__name__, 0
        while True:
            has_news = None
            start = self._clock.monotonic()
            if early:
                early.clear()
            try:
                has_news = await turn()
                failures = 0
                self._failing.pop(name, None)
            except Exception as error:  # noqa: BLE001 - counted, logged, and the turn repeats
                failures += 1
                self._failed(name, error, failures)
            pause = max(start + period - self._clock.monotonic(), period / 4)
            if early is None or has_news or failures:
                await self._clock.sleep(pause)
            else:
                with suppress(TimeoutError):
                    await within(self._clock, pause, early.wait())

    def _failed(self, name: str, error: Exception, failures: int) -> None:
        self._counters.add("member_failures", turn=name)
        if isinstance(error, JournalError):
            logger.error("the network process cannot continue: %s", error)
        else:
            logger.error("%s failed: %s (%d in a row)", name, error, failures, exc_info=error)
        if failures >= FAILURES_REPORTED:
            self._failing[name] = error

    def _peers(self) -> tuple[PeerInfo, ...]:
        connected = set(self._transport.peers())
        reach = self._transport.reach()
        entries = {peer_id_of(entry.author): entry for entry in self.directory.known()}
        entries.pop(self.directory.identity.peer_id, None)
        now = self._clock.time()
        result = []
        for peer in sorted(connected | set(entries)):
            entry = entries.get(peer)
            offers = entry.announcement.offers if entry else ()
            result.append(
                PeerInfo(
                    peer_id=peer,
                    author=entry.author if entry else author_or_none(peer),
                    connected=peer in connected,
                    policy_step=entry.announcement.policy_step if entry else None,
                    groups=sum(offer.groups for offer in offers),
                    heard=entry.heard if entry and peer not in connected else now,
                    swarm=self.directory.swarm_id if entry else self._acquaintance.swarm_of(peer),
                    link=reach.links.get(peer) if peer in connected else None,
                    timing=reach.timings.get(peer) if peer in connected else None,
                    profile=self._profiles.of(peer),
                    offers=offers,
                )
            )
        return tuple(result)


def assemble(
    transport: Transport,
    identity: Identity,
    signed: bytes,
    admission: Admission,
    experience: Experience,
    *,
    clock: Clock,
    counters: Counters,
    limits: CollectorLimits,
    upload_rate: float,
    secret: bytes,
    rng: random.Random | None = None,
    opener: Opener = open_announcement,
    profile: Profile | None = None,
    quiet: bool = False,
) -> Member:
    """Create a member and install its handlers and record check in ``transport``.

    Call it on the member's loop, before peers are served. ``signed`` is the verified manifest.
    With ``quiet`` it announces and serves nothing: an observer is not a member.
    """
    accounts, outbox = experience.accounts, experience.outbox
    directory = Directory(
        transport, identity, signed, clock, secret, counters, accounts.reputation, opener
    )
    transport.use_validator(directory.check)
    transport.use_reputation(OwnFirst(identity.author, accounts.reputation, accounts.reputations))
    exchange = Exchange(
        transport,
        outbox,
        directory,
        signed,
        accounts,
        clock,
        counters,
        upload_rate=upload_rate,
        profile=sign_profile(profile, identity, directory.swarm_id) if profile else b"",
        serves=not quiet,
    )
    publisher = Publisher(directory, outbox, experience.journal, clock, counters)
    arguments = transport, directory, exchange, admission, experience.pool, accounts
    collector = Collector(*arguments, counters, limits, rng or random.Random(), clock)
    return Member(transport, directory, exchange, publisher, collector, clock, counters, quiet)
