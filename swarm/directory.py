"""Writes, reads and remembers announcements, and estimates the swarm's size."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from statistics import fmean, median

from protocol import envelope
from protocol.announcement import (
    Announcement,
    Offer,
    Opener,
    check_clock,
    depth_for,
    depth_of,
    epoch_of,
    open_announcement,
    reader_paths,
    record_key,
    shard_of,
    shard_on,
    sign_announcement,
)
from protocol.codec import MAX_DEPTH
from protocol.errors import ProtocolError
from protocol.identity import Identity
from protocol.manifest import ProofOfWork, nonces
from protocol.messages import MAX_DIGESTS, record_digest
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import KEPT, Bounded, ReputationOf, lot, rank_of
from swarm.transport.records import RecordRule
from swarm.transport.transport import Transport

logger = logging.getLogger(__name__)

COUNTS_KEPT = 3
LARGEST_STEP = 1.0  # maximum change of depth per time slot; limits the effect of one odd count

ALL_DEPTHS = tuple(range(MAX_DEPTH + 1))
# Time slots between readings of all depths: parts of a split swarm may have different ones.
SOUNDING_EPOCHS = 16

MAX_KNOWN = 4096
OWN_KEPT = 256  # digests of this node's latest announcements: those of more than two time slots
LIFETIME_EPOCHS = 2.0
LEAST_STEP = 0.001  # seconds by which an announcement outlives the one it overwrites
HASHES = 20_000  # per part of the search for a nonce, some 50 ms

Path = Mapping[int, Collection[bytes]]  # authors found along one path, by depth


def authors_along(path: Path) -> float:
    """Estimate the swarm's authors from a path; each counts once, at its least depth."""
    seen: set[bytes] = set()
    total = 0.0
    for depth in sorted(path):
        authors = set(path[depth]) - seen
        seen |= authors
        total += len(authors) * 2.0**depth
    return total


class Density:
    """One node's estimate of the depth that suits its swarm, updated every time slot."""

    def __init__(self) -> None:
        self.depth = 0.0
        self._counts: deque[float] = deque(maxlen=COUNTS_KEPT)

    @property
    def known(self) -> bool:
        """Whether anything was counted yet."""
        return bool(self._counts)

    @property
    def estimated(self) -> int | None:
        """Authors of the swarm, if they are too many for a node to read them all."""
        return round(median(self._counts)) if self._counts and self.depth else None

    def depths(self) -> tuple[int, ...]:
        """Return the depths with authors: 0 alone, or two, even for an integer ``depth``."""
        low = math.floor(self.depth)
        return (low, low + 1) if 0.0 < self.depth < MAX_DEPTH else (low,)

    def count(self, paths: Collection[Path]) -> None:
        """Move to the median of three counts at :meth:`depths`, by one depth at most."""
        self._counts.append(fmean(map(authors_along, paths)))
        step = depth_for(median(self._counts)) - self.depth
        self.depth += min(max(step, -LARGEST_STEP), LARGEST_STEP)

    def sound(self, paths: Collection[Path]) -> None:
        """Update the estimate with authors found along the paths at :data:`ALL_DEPTHS`.

        It moves at once if far off. The smallest count holds: a deep record counts for thousands.
        """
        smallest = min(map(authors_along, paths))
        if self.known and abs(depth_for(smallest) - self.depth) <= LARGEST_STEP:
            self.count(paths)
            return
        self._counts.clear()
        self._counts.append(smallest)
        self.depth = depth_for(smallest)


Found = dict[int, dict[bytes, bytes]]  # records along one path, by depth and author


@dataclass(eq=False, repr=False)
class ShardReader:
    """Reads announcements along two paths, unpredictable without ``secret``."""

    _transport: Transport
    _swarm_id: bytes
    _author: bytes
    _secret: bytes

    def __post_init__(self) -> None:
        self.density = Density()
        self._turn = 0
        self._counted = -1  # the last time slot whose predecessor was counted
        self._alone = True  # whether that found no other author
        self._counting = asyncio.Lock()

    async def read(self, epoch: int) -> list[bytes]:
        """Return records along one of this node's two paths, alternating between calls."""
        self._turn += 1
        path = self._paths(epoch)[self._turn % 2]
        return _records(await self._along(epoch, [path], self.density.depths()))

    def keys(self, epoch: int) -> set[str]:
        """Return the DHT keys of the shards along both paths of a time slot."""
        depths = self.density.depths()
        return {
            record_key(self._swarm_id, epoch, depth, shard_on(path, depth))
            for path in self._paths(epoch)
            for depth in depths
        }

    async def count(self, epoch: int) -> list[bytes]:
        """Count the previous time slot's authors once per ``epoch``; return the records.

        A node for which the previous time slot shows no other author counts the present one.
        """
        async with self._counting:
            if self._counted == epoch:
                return []
            fraction = lot(self._secret, b"sounding", epoch.to_bytes(8, "big"))
            all_depths = self._alone or fraction < 1 / SOUNDING_EPOCHS
            depths = ALL_DEPTHS if all_depths else self.density.depths()
            past = max(0, epoch - 1)
            paths = await self._along(past, self._paths(past), depths)
            if all_depths and self._is_alone(paths):
                paths = await self._along(epoch, self._paths(epoch), depths)
            self._alone = self._is_alone(paths)
            if all_depths:
                self.density.sound(paths)
            else:
                self.density.count(paths)
            self._counted = epoch
            return _records(paths)

    def _paths(self, epoch: int) -> tuple[int, int]:
        return reader_paths(self._author, epoch, self._secret)

    async def _along(self, epoch: int, paths: Iterable[int], depths: Iterable[int]) -> list[Found]:
        """Read the shards of each path at some depths; shards of several paths once."""
        paths, depths = list(paths), list(depths)
        shards = sorted({(depth, shard_on(path, depth)) for path in paths for depth in depths})
        keys = [record_key(self._swarm_id, epoch, depth, shard) for depth, shard in shards]
        records = await asyncio.gather(*map(self._transport.read, keys))
        lookup = dict(zip(shards, records, strict=True))
        return [{depth: lookup[depth, shard_on(path, depth)] for depth in depths} for path in paths]

    def _is_alone(self, paths: Iterable[Found]) -> bool:
        authors = {author for path in paths for records in path.values() for author in records}
        return authors <= {self._author}


def _records(paths: Iterable[Found]) -> list[bytes]:
    return [record for path in paths for records in path.values() for record in records.values()]


@dataclass(frozen=True, slots=True)
class Known:
    """An author's latest announcement, opened."""

    author: bytes
    announcement: Announcement
    record: bytes
    digest: bytes  # stands for the record in a gossip request
    heard: float  # Unix time at which it came, seconds


@dataclass(eq=False, repr=False)
class Directory:
    """One member's view of the swarm's announcements.

    ``signed`` is the manifest, signed by the swarm creator. The local ``secret`` makes this node's
    shards, and the authors that it keeps if there are too many, unpredictable to others.
    ``reputation`` says which authors are useful, ``check`` which records the DHT may store.
    """

    _transport: Transport
    identity: Identity
    _signed: bytes
    _clock: Clock
    _secret: bytes
    _counters: Counters
    _reputation: ReputationOf
    _opener: Opener = open_announcement

    def __post_init__(self) -> None:
        self.check = RecordRule(self._signed, self._clock, self._counters, self._opener)
        self.manifest, self.swarm_id = self.check.manifest, self.check.swarm_id
        author, secret = self.identity.author, self._secret
        self.shards = ShardReader(self._transport, self.swarm_id, author, secret)
        self._nonce: int | None = None if isinstance(self.manifest.admission, ProofOfWork) else 0
        self._expiries: dict[int, float] = {}  # of this node's announcements, by time slot
        self._depths: dict[int, int] = {}  # of its announcements in the present time slot
        self._rng = random.Random(sha256(b"gossip" + secret).digest())
        self._own: Known | None = None
        self._own_digests: deque[bytes] = deque(maxlen=OWN_KEPT)
        self._first_epoch = math.inf  # of this process's first announcement
        self._watched: set[str] = set()
        self._known: Bounded[bytes, Known] = Bounded(MAX_KNOWN, self._rank)

    @property
    def epoch(self) -> int:
        """The current time slot."""
        return epoch_of(self._clock.time(), self.manifest.epoch_seconds)

    async def announce(self, offers: Sequence[Offer], policy_step: int, sequence: int) -> bool:
        """Sign, keep and store this node's record; return whether a replica accepted it."""
        nonce = await self._proof()
        if not self.shards.density.known:
            self._take(await self.shards.count(self.epoch))
        now, epoch = self._clock.time(), self.epoch
        depth = self._depth(epoch)
        shard = shard_of(self.identity.author, epoch, depth)
        expiry = self._expiry(now, epoch)
        location = epoch, depth, shard
        announcement = Announcement(*location, sequence, policy_step, expiry, nonce, tuple(offers))
        record = sign_announcement(announcement, self.identity, self.swarm_id)
        self._own = Known(self.identity.author, announcement, record, record_digest(record), now)
        self._own_digests.append(self._own.digest)
        self._first_epoch = min(self._first_epoch, epoch)
        key = record_key(self.swarm_id, epoch, depth, shard)
        stored = await self._transport.store(key, self.identity.author, record, expiry)
        self._counters.add("announced" if stored else "announce_failed")
        return stored

    def _expiry(self, now: float, epoch: int) -> float:
        """Return an expiry later than that of the record that this one replaces.

        Records of other time slots do not count: their clock may have been ahead for a while.
        """
        minimum = self._expiries.get(epoch, 0.0) + LEAST_STEP
        expiry = max(now + LIFETIME_EPOCHS * self.manifest.epoch_seconds, minimum)
        expiries = {e: x for e, x in self._expiries.items() if abs(e - epoch) <= LIFETIME_EPOCHS}
        self._expiries = expiries | {epoch: expiry}
        return expiry

    async def read(self) -> list[Known]:
        """Read this node's shards, once per slot also the previous slot's; return news."""
        epoch = self.epoch
        entries = self._take(await self.shards.count(epoch))
        return entries + self._take(await self.shards.read(epoch))

    def watch(self, heard: Callable[[bytes], None]) -> None:
        """Call ``heard`` with each new record that this node stores for a shard it reads.

        In a large swarm those are few. Call this again if the node's shards may have changed.
        """
        keys = self.shards.keys(self.epoch) | self.shards.keys(self.epoch + 1)
        if keys != self._watched:
            self._watched = keys
            self._transport.watch(keys, heard)

    def _take(self, records: Iterable[bytes]) -> list[Known]:
        return [entry for record in records if (entry := self.accept(record)) is not None]

    def accept(self, record: bytes) -> Known | None:
        """Check and remember a record; None unless it is news. Count protocol violations."""
        try:
            author, _, _ = envelope.parts(envelope.ANNOUNCEMENT, record, self.swarm_id)
            previous = self._known.get(author)
            if previous is not None and previous.record == record:
                return None
            author, announcement = self.check.opened(record)
            check_clock(announcement, self.manifest, self._clock.time())
        except ProtocolError as error:
            self.check.refused(error.code)
            return None
        if author == self.identity.author:
            self._meet_itself(announcement.epoch, record_digest(record))
            return None
        if previous is not None and previous.announcement.sequence >= announcement.sequence:
            return None
        if not self.check.begun(announcement.epoch):
            return None
        entry = Known(author, announcement, record, record_digest(record), self._clock.time())
        loser = self._known.put(author, entry)
        if loser is not None:
            self._counters.add("announcements_over_bound")
        return None if loser == author else entry

    def _meet_itself(self, epoch: int, digest: bytes) -> None:
        """Warn if another process announces under this node's key.

        An announcement of this key from a time slot that began after this process announced is of
        another process, unless it is one of this process.
        """
        if epoch <= self._first_epoch or digest in self._own_digests:
            return
        self._counters.add("identity_elsewhere")
        logger.warning(
            "another node announces under the key of this one, probably from a copy of its run "
            "folder. Peers refuse the groups of both. Stop one of the two, and start it in a "
            "new run folder, with its own key"
        )

    def known(self) -> list[Known]:
        """Return unexpired latest announcements, including this node's, ordered by author."""
        now = self._clock.time()
        for entry in self._known.values():
            if entry.announcement.expiry <= now:
                self._known.pop(entry.author)
        local = [self._own] if self._own and self._own.announcement.expiry > now else []
        return sorted([*local, *self._known.values()], key=lambda entry: entry.author)

    def count_known(self) -> int:
        """Return the number of others' announcements that a search goes through."""
        return len(self._known)

    def useful(self) -> set[bytes]:
        """Return the announcing authors that are known to be useful."""
        return {author for author in self._known if self._known.rank(author) < 0}

    def digests(self, after: int) -> tuple[bytes, ...]:
        """Return the digests of later time slots' records, ascending; none if too many."""
        digests = {k.digest for k in self.known() if k.announcement.epoch > after}
        return tuple(sorted(digests)) if len(digests) <= MAX_DIGESTS else ()

    def recent(self, after: int, limit: int, known: Collection[bytes] = ()) -> list[bytes]:
        """Return records later than ``after``: this node's, then a sample of the others.

        Up to a quarter is of useful authors, the best first. Digests in ``known`` are omitted.
        """
        recent = [k for k in self.known() if k.announcement.epoch > after and k.digest not in known]
        local = [k for k in recent if k is self._own]
        remote = [k for k in recent if k is not self._own]
        capacity = max(0, limit - len(local))
        if len(remote) > capacity:
            useful = [k for k in remote if self._known.rank(k.author) < 0]
            useful = sorted(useful, key=lambda k: self._known.rank(k.author))[: int(limit * KEPT)]
            authors = {k.author for k in useful}
            remainder = [k for k in remote if k.author not in authors]
            remote = useful + self._rng.sample(remainder, max(0, capacity - len(useful)))
        return [known.record for known in (local + remote)[:limit]]

    def _depth(self, epoch: int) -> int:
        """Return one depth per time slot, so a later record replaces an earlier one."""
        if epoch not in self._depths:
            self._depths = {epoch: depth_of(self.identity.author, epoch, self.shards.density.depth)}
        return self._depths[epoch]

    def _rank(self, author: bytes) -> float:
        fraction = lot(self._secret, self.epoch.to_bytes(8, "big"), author)
        return rank_of(fraction, self._reputation(author))

    async def _proof(self) -> int:
        """Search on a thread, in parts: one that is not awaited any more would delay the exit."""
        starts = count(0, HASHES)
        while self._nonce is None:
            numbers = range(start := next(starts), start + HASHES)
            matches = nonces(self.manifest.admission, self.swarm_id, self.identity.author, numbers)
            self._nonce = await asyncio.to_thread(next, matches, None)
        return self._nonce
