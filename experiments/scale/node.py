"""One member of a simulated swarm: a real member, pool and admission with stubs around them."""

from __future__ import annotations

import gc
import random
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

from experiments.scale.network import ScaleNetwork, ScaleTransport
from experiments.scale.settings import FAMILY, Settings, SwarmManifest
from protocol import announcement
from protocol.frame import open_frame
from protocol.identity import Identity
from protocol.rollout import Completion, Finish, Group, Segment, Writer
from swarm import admission
from swarm.admission import Admission
from swarm.collector import CollectorLimits
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.groups import GroupKey, Origin, TaskRef
from swarm.journal import MEMORY, Journal, create_tables
from swarm.member import Experience, assemble
from swarm.pool import Pool
from swarm.publisher import Outbox
from swarm.reputation import (
    PROVEN,
    RELEASE_AT,
    Account,
    Accounts,
    is_banned,
    penalized,
    reputation_now,
)
from swarm.verification import Answer, GroupVerifier, Scores, penalty_weight


@dataclass(frozen=True, slots=True)
class SharedOpeners:
    """Functions that open each message once per process, instead of once per node.

    A real node caches only the messages that it received itself.
    """

    frame: admission.Opener
    record: announcement.Opener

    @classmethod
    def with_cache(cls, messages: int) -> SharedOpeners:
        """Return openers that cache this many of the latest messages each."""
        return cls(
            lru_cache(messages)(open_frame), lru_cache(messages)(announcement.open_announcement)
        )


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the cyclic garbage collector, which takes longer than a node's turn."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@cache
def _template() -> sqlite3.Connection:
    connection = sqlite3.connect(MEMORY)
    create_tables(connection)
    return connection


class MemoryJournal(Journal):
    """:class:`swarm.journal.Journal` without locks and rollback.

    A simulation has one thread and ends with the first failure.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(MEMORY, clock)

    def _prepare(self) -> None:
        """Copy the tables of a new journal, ten times faster than creating them."""
        _template().backup(self._connection)

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        yield self._connection

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()


class MemoryAccounts(Accounts):
    """:class:`swarm.reputation.Accounts` with the same rules, but no database and no limit.

    Bytes are not counted: the network counts the traffic.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock)
        self._now = clock.time
        self._held: dict[bytes, Account] = {}

    def get(self, author: bytes) -> Account:
        return self._held.get(author) or Account(author)

    def banned(self, author: bytes) -> bool:
        account = self._held.get(author)
        return account is not None and is_banned(account, self._now())

    def reputation(self, author: bytes) -> float:
        account = self._held.get(author)
        return reputation_now(account, self._now()) if account is not None else 0.0

    def proven(self) -> frozenset[bytes]:
        return frozenset(a for a, value in self.reputations().items() if value >= PROVEN)

    def reputations(self) -> dict[bytes, float]:
        found = {author: self.reputation(author) for author in self._held}
        return {author: value for author, value in found.items() if value > 0}

    def tried(self) -> dict[bytes, float]:
        now = self._now()
        return {
            author: account.reputation.now(now)
            for author, account in self._held.items()
            if account.reputation.at > 0 or account.penalties >= RELEASE_AT
        }

    def prove(self, groups: Iterable[tuple[bytes, float]]) -> None:
        now = self._now()
        for author, usefulness in groups:
            account = self.get(author)
            if not is_banned(account, now):
                reputation = account.reputation.after(usefulness, now)
                self._held[author] = replace(account, reputation=reputation)

    def count_bytes(self, author: bytes, *, received: int = 0, sent: int = 0) -> None:
        pass

    def admit(self, author: bytes, groups: int) -> None:
        account, now = self.get(author), self._now()
        self._held[author] = replace(account, admitted=account.admitted + groups, admitted_at=now)

    def charge(self, author: bytes, seconds: float) -> None:
        account = self.get(author)
        self._held[author] = replace(account, seconds=account.seconds + seconds)

    def refuse(self, author: bytes, reason: str, n: int = 1) -> None:
        account, weight = self.get(author), n * penalty_weight(reason)
        refused = {**account.refused, reason: account.refused.get(reason, 0) + n}
        after = penalized(account, weight, self._now()) if weight else account
        self._held[author] = replace(after, refused=refused)

    def snapshot(self) -> list[Account]:
        return sorted(self._held.values(), key=lambda account: account.author)


ORIGIN = Origin(1, "none", b"\x01" * 32, 1.0, 16)
TEXTS = ("a right answer", "a wrong answer.")  # one of even length: groups are informative
FULL_USE = 1.0


def reward(text: str) -> float:
    return float(len(text) % 2 == 0)


class StubVerifier(GroupVerifier):
    """Reward texts of even length, without a verifier."""

    def verify(
        self, task: TaskRef, texts: Sequence[Answer], *, seconds: float | None = None
    ) -> Scores:
        rewards = tuple(reward(text) for text in texts if isinstance(text, str))
        return Scores(f"{task.env} {task.seed}", rewards, seconds=0.0)


class StubLearner:
    """Write groups and use those of peers without a policy; all peer groups are fully useful."""

    def __init__(self, experience: Experience, groups: int, limit: int) -> None:
        self._experience = experience
        self._groups = groups
        self._limit = limit
        self._step = 0

    def write(self, epoch: int) -> int:
        """Put the groups of a time slot into the outbox; return their number."""
        indexes = self._experience.journal.next_indexes(epoch, self._groups, self._limit)
        self._experience.outbox.put([_group(epoch, index) for index in indexes], ORIGIN)
        return len(indexes)

    def learn(self) -> list[GroupKey]:
        """Use all groups of the pool in one update; return their keys."""
        self._step += 1
        used = self._experience.pool.consume(self._experience.pool.fresh(), self._step)
        keys = [pooled.key for pooled in used]
        self._experience.pool.record_update(self._step, (), keys)
        self._experience.accounts.prove((key.author, FULL_USE) for key in keys)
        return keys


def _group(epoch: int, index: int) -> Group:
    completions = tuple(
        Completion((Segment(Writer.POLICY, text),), reward(text), Finish.STOP) for text in TEXTS
    )
    return Group(FAMILY.name, 0, epoch, index, completions)


POOL_GROUPS = 256
POOL_SECONDS = 3600.0
UPLOAD_RATE = 8.0 * (1 << 20)


class ScaleNode:
    """A real member, journal, pool and admission with a stub verifier and a stub learner.

    Attributes:
        transport: endpoint of the network, which counts the node's traffic.
        joined: unix time of joining, seconds.
        phase: position of its turn within each round of turns, in [0, 1).
        first: unix time of its first peer group; None without any.
    """

    def __init__(
        self,
        network: ScaleNetwork,
        shared: SwarmManifest,
        openers: SharedOpeners,
        settings: Settings,
        number: int,
    ) -> None:
        name = f"node/{settings.seed}/{number}"
        identity = Identity.from_seed(sha256(name.encode()).digest())
        clock, counters = network.clock, Counters()
        self.author = identity.author
        self.joined = 0.0
        self.phase = random.Random(f"phase/{name}").random()
        self.first: float | None = None
        self.transport = ScaleTransport(network, identity.peer_id)
        self._clock = clock
        self._journal = journal = MemoryJournal(clock)
        self._pool = pool = Pool(journal, POOL_GROUPS, POOL_SECONDS, clock, counters)
        accounts = MemoryAccounts(journal, clock)
        experience = Experience(journal, pool, Outbox(journal, counters), accounts)
        limit = shared.manifest.max_groups_per_epoch
        self._learner = StubLearner(experience, settings.groups, limit)
        self._member = assemble(
            self.transport,
            identity,
            shared.signed,
            _admission(experience, shared, openers, clock, counters),
            experience,
            clock=clock,
            counters=counters,
            limits=CollectorLimits(settings.gossip_peers, settings.pulls),
            upload_rate=UPLOAD_RATE,
            secret=identity.author,
            rng=random.Random(name),
            opener=openers.record,
        )

    @property
    def depth(self) -> float:
        return self._member.density.depth

    async def join(self) -> None:
        await self.transport.start()

    async def leave(self) -> None:
        await self.transport.close()
        self._journal.close()

    def write(self, epoch: int) -> int:
        return self._learner.write(epoch)

    async def turn(self) -> int:
        """Take one turn; return the number of new peer groups in the pool."""
        await self._member.step()
        got = len(self._pool.arrived())
        if got and self.first is None:
            self.first = self._clock.time()
        return got

    def learn(self) -> list[GroupKey]:
        return self._learner.learn()


def _admission(
    experience: Experience,
    shared: SwarmManifest,
    openers: SharedOpeners,
    clock: Clock,
    counters: Counters,
) -> Admission:
    return Admission(
        shared.manifest,
        shared.swarm_id,
        StubVerifier(),
        experience.accounts,
        experience.journal,
        clock,
        counters,
        threaded=False,
        opener=openers.frame,
    )
