"""One member of a swarm: gives its own experience, takes that of others, and never stops.

Its halves, :class:`swarm.publisher.Publisher` and :class:`swarm.collector.Collector`, take their
turns four times an epoch, so that what is published now is pooled elsewhere within the epoch. What
comes into the outbox does not wait for a turn, unless there was news a quarter of an epoch before.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from protocol.announcement import Offer
from protocol.errors import BadKey
from protocol.identity import author_of, peer_id_of
from protocol.profile import Profile
from swarm.acquaintance import Acquaintance
from swarm.collector import Admission, Collector, CollectorLimits
from swarm.common.clock import Clock, within
from swarm.common.clock_watch import ClockWatch
from swarm.common.counters import Counters
from swarm.density import Density
from swarm.directory import Directory
from swarm.exchange import Exchange
from swarm.experience import Experience
from swarm.journal_errors import JournalError
from swarm.profiles import Profiles
from swarm.publisher import Publisher
from swarm.transport.reach import Reach, Way
from swarm.transport.timing import Timing
from swarm.transport.transport import Transport

logger = logging.getLogger(__name__)

TURNS_PER_EPOCH = 4
FAILURES_REPORTED = 10
MEETING_SECONDS = 1.0
"""Between two looks at who is connected and has not told its swarm."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What this node knows of another.

    Attributes:
        peer_id: base58.
        author: public key; None for a peer whose identity is not an Ed25519 key.
        connected: there is a connection now.
        swarm: id of the swarm that it is in; None while that is not known.
        link: how it is connected, "direct" or "relayed"; None where it is not.
        timing: how far away it is and how its clock goes; None where that was not measured.
        profile: what it says of itself, which nobody checked; None where it says nothing.
        policy_step: as last announced; None if nothing of this peer is known.
        groups: groups in the frames it offers.
        offers: those frames, as last announced.
        heard: unix time of its last sign of life, an announcement or a connection; seconds.
    """

    peer_id: str
    author: bytes | None
    connected: bool
    policy_step: int | None
    groups: int
    heard: float
    swarm: bytes | None = None
    link: Way | None = None
    timing: Timing | None = None
    profile: Profile | None = None
    offers: tuple[Offer, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member at one moment; byte counts are payload since the start.

    Attributes:
        peers: everybody connected or heard of, those of other swarms included.
        reach: whether others can dial this node.
        estimated: authors of the whole swarm, where this node sees a part of them alone.
    """

    peer_id: str
    swarm_id: bytes
    addresses: tuple[str, ...]
    epoch: int
    peers: tuple[PeerInfo, ...]
    bytes_in: int
    bytes_out: int
    reach: Reach = field(default_factory=Reach)
    estimated: int | None = None

    @property
    def members(self) -> int:
        """Others that are in this node's swarm."""
        return sum(peer.swarm == self.swarm_id for peer in self.peers)

    @property
    def strangers(self) -> int:
        """Connected nodes that are in another swarm."""
        return sum(peer.swarm not in (None, self.swarm_id) for peer in self.peers)


class Member:
    """Runs on the network's event loop; the learner's thread meets it in outbox and pool only.

    Args:
        quiet: whether it announces nothing.
    """

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        exchange: Exchange,
        admission: Admission,
        experience: Experience,
        clock: Clock,
        counters: Counters,
        limits: CollectorLimits | None = None,
        rng: random.Random | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self._quiet = quiet
        self._failing: dict[str, Exception] = {}
        self._transport = transport
        self._directory = directory
        self._clock = clock
        self._counters = counters
        self._publisher = Publisher(
            directory, experience.outbox, experience.journal, clock, counters
        )
        self._collector = Collector(
            transport,
            directory,
            exchange,
            admission,
            experience.pool,
            experience.accounts,
            counters,
            limits or CollectorLimits(),
            rng or random.Random(),
            clock,
        )

        self._watch = ClockWatch(clock, counters)
        pause = directory.manifest.epoch_seconds
        ours = directory.swarm_id
        self._acquaintance = Acquaintance(transport, exchange, ours, clock, pause)
        self._profiles = Profiles(transport, exchange, ours, clock, counters, pause)

    @property
    def density(self) -> Density:
        """What this node takes for the size of its swarm."""
        return self._directory.shards.density

    @property
    def failure(self) -> Exception | None:
        """The latest of ten or more failures in a row inside this node; None while it works."""
        return next(iter(self._failing.values()), None)

    async def step(self) -> None:
        """One turn of everything, each pull awaited.

        Raises:
            Exception: what failed inside this node.
        """
        if not self._quiet:
            await self._publisher.publish()
        await self._collector.gossip()
        await self._collector.look()
        await self._collector.settle()

    async def run(self) -> None:
        """Take turns until cancelled. A slow peer holds up nothing but its own answer."""
        publish, turns = self._publisher.publish, (self._collector.gossip, self._collector.look)
        period = self._directory.manifest.epoch_seconds / TURNS_PER_EPOCH
        try:
            with self._publisher.filled.listening() as filled:
                gives = () if self._quiet else (self._repeat(publish, period, filled),)
                await asyncio.gather(
                    *gives,
                    *(self._repeat(turn, period) for turn in turns),
                    self._repeat(self.meet, min(MEETING_SECONDS, period)),
                )
        finally:
            await self._collector.close()

    async def meet(self) -> None:
        """Look at the clock; find out which swarm those are in who announce nothing here, and what
        members say of themselves."""
        self._watch.look()
        authors = {known.author for known in self._directory.known()}
        ours, swarm_of = self._directory.swarm_id, self._acquaintance.swarm_of
        await asyncio.gather(
            self._acquaintance.look(lambda peer: _author(peer) in authors),
            self._profiles.look(lambda peer: _author(peer) in authors or swarm_of(peer) == ours),
        )

    def status(self) -> MemberStatus:
        """What the monitor shows."""
        return MemberStatus(
            peer_id=self._transport.peer_id,
            swarm_id=self._directory.swarm_id,
            addresses=self._transport.addresses(),
            epoch=self._directory.epoch,
            peers=self._peers(),
            bytes_in=self._transport.bytes_in,
            bytes_out=self._transport.bytes_out,
            reach=self._transport.reach(),
            estimated=self.density.estimated,
        )

    async def _repeat(
        self,
        turn: Callable[[], Awaitable[bool | None]],
        period: float,
        early: asyncio.Event | None = None,
    ) -> None:
        """Take a turn each period; after one that returns nothing, when ``early`` is set."""
        name, failures = turn.__name__, 0
        while True:
            began = self._clock.monotonic()
            soon = None
            if early:
                early.clear()
            try:
                soon = None if await turn() else early
                failures = 0
                self._failing.pop(name, None)
            except Exception as error:
                failures += 1
                self._counters.add("member_failures", turn=name)
                if isinstance(error, JournalError):
                    logger.error("the network's side cannot go on now: %s", error)
                else:
                    logger.exception("%s failed: %s (%d in a row)", name, error, failures)
                if failures >= FAILURES_REPORTED:
                    self._failing[name] = error
            took = self._clock.monotonic() - began
            pause = max(period - took, period / 4)
            if soon is None:
                await self._clock.sleep(pause)
                continue
            with suppress(TimeoutError):
                await within(self._clock, pause, soon.wait())

    def _peers(self) -> tuple[PeerInfo, ...]:
        connected = set(self._transport.peers())
        reach = self._transport.reach()
        known = {
            peer_id_of(entry.author): entry
            for entry in self._directory.known()
            if entry.author != self._directory.identity.author
        }
        now = self._clock.time()
        result = []
        for peer in sorted(connected | set(known)):
            entry = known.get(peer)
            result.append(
                PeerInfo(
                    peer_id=peer,
                    author=entry.author if entry else _author(peer),
                    connected=peer in connected,
                    policy_step=entry.announcement.policy_step if entry else None,
                    groups=sum(o.groups for o in entry.announcement.offers) if entry else 0,
                    heard=entry.heard if entry and peer not in connected else now,
                    swarm=self._directory.swarm_id if entry else self._acquaintance.swarm_of(peer),
                    link=reach.links.get(peer) if peer in connected else None,
                    timing=reach.timings.get(peer) if peer in connected else None,
                    profile=self._profiles.of(peer),
                    offers=entry.announcement.offers if entry else (),
                )
            )
        return tuple(result)


def _author(peer: str) -> bytes | None:
    try:
        return author_of(peer)
    except BadKey:
        return None
