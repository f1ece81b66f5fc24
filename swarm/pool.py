"""The replay buffer: admitted peer groups for updates, and the record of what updates used.

If the buffer is over a limit, groups of unproven authors are evicted while their share exceeds
``unproven_share``, then those of proven authors. The author with the largest share loses a group
first. Its groups without advantage are evicted first, then the oldest.
"""

from __future__ import annotations

import heapq
import logging
import sqlite3
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from typing import NamedTuple

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.groups import (
    Candidate,
    GroupKey,
    PooledGroup,
    pack_pooled,
    pack_rewards,
    unpack_pooled,
    unpack_rewards,
)
from swarm.journal import Journal, number, set_number
from swarm.reputation import Accounts

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
KEPT_USES = 1 << 16  # recorded uses, for distant checkpoints; beyond, groups are too old anyway
LEAST_USES = 1 << 12  # latest uses always kept, so the composition of updates can be inspected
MAX_DELETED = 1 << 12  # uses per transaction, so the network's thread never waits long
OWN = b""  # author of local groups in the table of used groups
_THIS = "author=? AND epoch=? AND number=?"
_INSERT = "INSERT OR IGNORE INTO pool VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
_USE = "INSERT INTO used (author, epoch, number, step, trained) VALUES (?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM used WHERE use<=(SELECT use FROM used ORDER BY use DESC LIMIT 1 OFFSET ?)"
_FORGET_MOOT = """
DELETE FROM used WHERE use IN (
    SELECT use FROM used AS this
    WHERE use<=(SELECT max(use) FROM used)-? AND (author=? OR epoch<? AND (NOT trained OR EXISTS (
        SELECT 1 FROM used WHERE author=this.author AND trained AND use<this.use
    ))) LIMIT ?
) RETURNING author, epoch
"""
_FORGOTTEN = "forgotten_epoch"


class Held(NamedTuple):
    key: GroupKey
    informative: int
    received: float
    size: int

    @property
    def rank(self) -> tuple[int, float, GroupKey]:
        return self.informative, self.received, self.key


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a replay buffer: ``groups`` in number, ``size`` in stored bytes."""

    groups: int
    size: int
    unproven_share: float = 0.25  # of both, what unproven authors keep if others need the space
    salt: bytes = b""  # of this node; makes the order of equal authors unpredictable


def over_limits(
    held: Iterable[Held], limits: PoolLimits, proven: Set[bytes] = frozenset()
) -> list[GroupKey]:
    """Return the groups to evict, as this module explains, to meet both limits."""
    ranked = sorted(held, key=lambda h: h.rank, reverse=True)
    unproven_side = _Side([h for h in ranked if h.key.author not in proven], limits)
    proven_side = _Side([h for h in ranked if h.key.author in proven], limits)
    keys: list[GroupKey] = []
    groups, size = len(ranked), unproven_side.size + proven_side.size
    while groups - len(keys) > limits.groups or size > limits.size:
        first = unproven_side.groups and unproven_side.share > limits.unproven_share
        keys.append((unproven_side if first or not proven_side.groups else proven_side).give())
        size = unproven_side.size + proven_side.size
    return keys


class _Side:
    def __init__(self, ranked: Sequence[Held], limits: PoolLimits) -> None:
        self._limits = limits
        self._stacks: defaultdict[bytes, list[Held]] = defaultdict(list)
        for entry in ranked:
            self._stacks[entry.key.author].append(entry)
        self._weight = {a: sum(h.size for h in s) for a, s in self._stacks.items()}
        self.groups = len(ranked)
        self.size = sum(self._weight.values())
        self._heap = [self._place(author) for author in self._stacks]
        heapq.heapify(self._heap)

    @property
    def share(self) -> float:
        """Fraction of the limit that these groups together fill most."""
        return max(self.groups / self._limits.groups, self.size / self._limits.size)

    def give(self) -> GroupKey:
        author = self._heap[0][-1]
        stack = self._stacks[author]
        entry = stack.pop()
        self.groups, self.size = self.groups - 1, self.size - entry.size
        self._weight[author] -= entry.size
        if stack:
            heapq.heapreplace(self._heap, self._place(author))
        else:
            heapq.heappop(self._heap)
        return entry.key

    def _place(self, author: bytes) -> tuple[float, bytes, bytes]:
        stack, limits = self._stacks[author], self._limits
        share = max(len(stack) / limits.groups, self._weight[author] / limits.size)
        key_bytes = repr(tuple(stack[-1].key)).encode()
        tiebreak = blake2b(key_bytes, key=limits.salt, digest_size=8).digest()
        return -share, tiebreak, author


@dataclass(eq=False)
class Pool:
    """A bounded store that returns each group ``max_uses`` times or less.

    The limit holds across crashes: :meth:`consume` first records a use on disk. The network's
    thread adds groups while the learner's thread lists and consumes them. A group is offered until
    ``max_age_s`` seconds after admission. At most ``kept_uses`` uses are recorded, of which
    :meth:`forget` keeps the latest ``least_uses``. Counts ``pool_evicted{reason=aged|full}``,
    ``pool_refused{reason=used|duplicate|forgotten}`` and ``pool_gone`` (chosen, but evicted).
    """

    journal: Journal
    max_groups: int
    max_age_s: float
    clock: Clock
    counters: Counters
    max_bytes: int = MAX_BYTES
    max_uses: int = 1
    _: KW_ONLY
    unproven_share: float = 0.25
    salt: bytes = b""
    kept_uses: int = KEPT_USES
    least_uses: int = LEAST_USES

    def __post_init__(self) -> None:
        self._limits = PoolLimits(self.max_groups, self.max_bytes, self.unproven_share, self.salt)
        self._accounts = Accounts(self.journal, self.clock)
        self._arrived: deque[Candidate] = deque(maxlen=self.max_groups)

    def add(self, groups: Iterable[PooledGroup]) -> int:
        """Add groups that are neither stored nor used; return how many.

        Groups of time slots with forgotten uses are refused. Evicts as :mod:`swarm.pool` explains.
        """
        groups = list(groups)
        rows = [_row(group) for group in groups]
        count, candidates = 0, list[Candidate]()
        with self.journal.transaction() as connection:
            cutoff_epoch = forgotten_epoch(connection)
            for row, group in zip(rows, groups, strict=True):
                if group.group.epoch <= cutoff_epoch:
                    self.counters.add("pool_refused", reason="forgotten")
                elif connection.execute(f"SELECT 1 FROM used WHERE {_THIS}", row[:3]).fetchone():
                    self.counters.add("pool_refused", reason="used")
                elif connection.execute(_INSERT, row).rowcount:
                    count += 1
                    candidates.append(group.candidate)
                else:
                    self.counters.add("pool_refused", reason="duplicate")
            self._evict(connection)
        self._arrived.extend(candidates)
        return count

    def arrived(self) -> list[Candidate]:
        """Return each group added since the last call, once, even if evicted since."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def fresh(self) -> list[Candidate]:
        """Return every group young enough for training, in the order of keys."""
        rows = self.journal.read(
            "SELECT author, epoch, number, env, level, rewards, policy_step, received, uses "
            "FROM pool WHERE received>? AND uses<? ORDER BY author, epoch, number",
            (self._oldest(), self.max_uses),
        )
        return [
            Candidate(GroupKey(*key), env, level, unpack_rewards(rewards), step, received, uses)
            for *key, env, level, rewards, step, received, uses in rows
        ]

    def available(self) -> int:
        """Count fresh, unused groups that are informative."""
        query = "SELECT count(*) FROM pool WHERE informative AND NOT uses AND received>?"
        count: int = self.journal.read(query, (self._oldest(),))[0][0]
        return count

    def consume(self, chosen: Sequence[Candidate], step: int) -> list[PooledGroup]:
        """Return the chosen groups for update ``step``.

        Their use is on disk before this returns, so a crash wastes it. A group is omitted and
        counted if it was evicted since it was listed, or was used ``max_uses`` times.
        """
        entries = []
        with self.journal.transaction(durable=True) as connection:
            for key in (candidate.key for candidate in chosen):
                rows = connection.execute(
                    f"UPDATE pool SET uses=uses+1 WHERE {_THIS} AND uses<? "
                    "RETURNING uses, received, contents",
                    (*key, self.max_uses),
                ).fetchall()
                if not rows:
                    self.counters.add("pool_gone")
                    continue
                ((uses, received, contents),) = rows
                connection.execute(_USE, (*key, step, False))
                if uses >= self.max_uses:
                    connection.execute(f"DELETE FROM pool WHERE {_THIS}", key)
                entries.append((key.author, received, contents))
        return [unpack_pooled(*row) for row in entries]

    def record_update(
        self, step: int, own: Iterable[tuple[int, int]], external: Iterable[GroupKey]
    ) -> None:
        """Record the local ``(epoch, index)`` and peer keys that led to policy ``step``."""
        query = f"SELECT max(use) FROM used WHERE {_THIS} AND NOT trained"
        with self.journal.transaction() as connection:
            for key in [(OWN, *sample) for sample in own] + [tuple(key) for key in external]:
                count = connection.execute(
                    f"UPDATE used SET step=?, trained=1 WHERE use=({query})", (step, *key)
                ).rowcount
                if not count:
                    connection.execute(_USE, (*key, step, True))
            connection.execute(_FORGET, (self.kept_uses,))

    def rewind(self, step: int) -> None:
        """Remove updates after ``step`` from the lineage; their groups stay used."""
        with self.journal.transaction() as connection:
            connection.execute("UPDATE used SET trained=0 WHERE step>?", (step,))

    def forget(self, epoch: int) -> int:
        """Delete obsolete uses, except for the latest and each peer's first; return how many.

        To undo a peer's effect, its first update must be known (:func:`updates_of`). Local sample
        indexes are never used again. A peer group of a forgotten time slot is never added again,
        however far the clock is set back. Returning to a checkpoint needs nothing that is deleted:
        an unknown update is equivalent to a removed one. Groups of time slots before ``epoch`` are
        too old to be admitted.
        """
        total, count = 0, MAX_DELETED
        params = self.least_uses, OWN, epoch, MAX_DELETED
        while count == MAX_DELETED:
            with self.journal.transaction() as connection:
                rows = connection.execute(_FORGET_MOOT, params).fetchall()
                latest = max((slot for author, slot in rows if author != OWN), default=-1)
                note_forgotten(connection, latest)
            count = len(rows)
            total += count
        return total

    def _oldest(self) -> float:
        return self.clock.time() - self.max_age_s

    def _evict(self, connection: sqlite3.Connection) -> None:
        aged = connection.execute("DELETE FROM pool WHERE received<=?", (self._oldest(),)).rowcount
        surplus = self._surplus(connection)
        connection.executemany(f"DELETE FROM pool WHERE {_THIS}", surplus)
        for reason, count in (("aged", aged), ("full", len(surplus))):
            if count:
                self.counters.add("pool_evicted", count, reason=reason)
                log.info("pool: %s evicted (%s)", counted(count, "group"), reason)

    def _surplus(self, connection: sqlite3.Connection) -> list[GroupKey]:
        groups, size = connection.execute("SELECT count(*), total(size) FROM pool").fetchone()
        if groups <= self._limits.groups and size <= self._limits.size:
            return []
        query = "SELECT author, epoch, number, informative, received, size FROM pool"
        entries = [Held(GroupKey(*row[:3]), *row[3:]) for row in connection.execute(query)]
        return over_limits(entries, self._limits, self._accounts.proven())


def note_forgotten(connection: sqlite3.Connection, epoch: int) -> None:
    """Admit no peer group of a time slot up to ``epoch`` again."""
    if epoch > forgotten_epoch(connection):
        set_number(connection, _FORGOTTEN, epoch)


def forgotten_epoch(connection: sqlite3.Connection) -> int:
    """Return the latest time slot of which samples or uses are forgotten, or -1."""
    return int(number(connection, _FORGOTTEN, -1))


def _row(pooled: PooledGroup) -> tuple[object, ...]:
    entry, contents = pooled.candidate, pack_pooled(pooled)
    columns = (*entry.key, entry.received, entry.informative, len(contents), entry.env, entry.level)
    return (*columns, pack_rewards(entry.rewards), entry.policy_step, contents)


def updates_of(journal: Journal, author: bytes) -> list[int]:
    """Return the remembered policy steps that followed from the author's groups, ascending."""
    query = "SELECT DISTINCT step FROM used WHERE author=? AND trained ORDER BY step"
    return [step for (step,) in journal.read(query, (author,))]
