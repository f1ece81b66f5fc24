"""This node's record of every author: bytes, admitted and refused groups, penalties, reputation."""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protocol.identity import peer_id_of
from swarm.common.clock import Clock
from swarm.journal import Journal, check_layout, named_errors
from swarm.verification import penalty_weight

log = logging.getLogger(__name__)

MEMORY = 12  # useless groups that reduce earned reputation to ``1/e``
FULL = 6.0  # earned reputation from which reputation is 1
PROVEN = 0.5  # reputation from which an author counts as proven
PROMISING = 0.5  # earned reputation from which an unproven author precedes untried ones
REPUTATION_HALF_LIFE_S = 3 * 86400.0
PENALTY_HALF_LIFE_S = 3600.0
BAR_AT = 5.0
RELEASE_AT = 1.0
MAX_PENALTIES = 45.0  # limits a ban to five and a half half-lives after the last penalty
LONGEST_BAN_S = math.log2(MAX_PENALTIES / RELEASE_AT) * PENALTY_HALF_LIFE_S
MAX_ACCOUNTS = 10_000
BUSY_SECONDS = 2.0

RefusalHeard = Callable[[bytes, str, int], None]  # (author, reason, number of refusals)

_COLUMNS = (
    "author, bytes_in, bytes_out, admitted, strikes, struck_at, barred, touched, "
    "earned, earned_at, seconds, admitted_at"
)
_TIMES = "struck_at", "touched", "earned_at", "admitted_at"


@dataclass(frozen=True, slots=True)
class Reputation:
    """An author's earnings, from 0 to ``FULL``, at the Unix time of its last group."""

    earned: float = 0.0
    at: float = 0.0

    def now(self, now: float) -> float:
        """Return what is left of it at Unix time ``now``."""
        return self.earned * math.exp2(-max(0.0, now - self.at) / REPUTATION_HALF_LIFE_S)

    def after(self, usefulness: float, now: float) -> Reputation:
        """Return the reputation after an update used one more group, of a usefulness in [0, 1]."""
        gain = min(1.0, max(0.0, usefulness)) if math.isfinite(usefulness) else 0.0
        return Reputation(min(FULL, self.now(now) * (1.0 - 1.0 / MEMORY) + gain), now)


@dataclass(frozen=True, slots=True)
class Account:
    """One author's record."""

    author: bytes
    bytes_in: int = 0
    bytes_out: int = 0  # payload bytes served to this author
    admitted: int = 0
    penalties: float = 0.0  # weight of penalties at ``penalized_at``; it halves every hour
    penalized_at: float = 0.0  # Unix time of the last penalty, seconds
    barred: bool = False  # the last penalty reached ``BAR_AT`` or found the author banned
    touched: float = 0.0  # Unix time of the last change, seconds
    reputation: Reputation = Reputation()  # earned by useful groups; a ban removes it
    seconds: float = 0.0  # verification time of its groups
    admitted_at: float = 0.0  # Unix time of the last of them, seconds; 0 if there is none
    # Refusals by reason: number of groups, or 1 per frame that could not be opened.
    refused: Mapping[str, int] = field(default_factory=dict)

    def figures(self, now: float) -> dict[str, Any]:
        """Return what is shown of a peer, as plain JSON."""
        return {
            **{key: getattr(self, key) for key in ("bytes_in", "bytes_out", "admitted")},
            "admitted_at": self.admitted_at or None,
            "refused": dict(self.refused),
            "strikes": penalties_now(self, now),
        }


def penalties_now(account: Account, now: float) -> float:
    """Return the weight of an account's penalties at Unix time ``now``."""
    age = max(0.0, now - account.penalized_at)
    return account.penalties * math.exp2(-age / PENALTY_HALF_LIFE_S)


def is_banned(account: Account, now: float) -> bool:
    """Return whether this author's data is ignored.

    Bans last from ``BAR_AT`` penalties until they decay to ``RELEASE_AT``, in 2.3 to 5.5 hours.
    """
    return account.barred and penalties_now(account, now) > RELEASE_AT


def penalized(account: Account, weight: float, now: float) -> Account:
    """Return the account after a penalty of ``weight``."""
    penalties = min(MAX_PENALTIES, penalties_now(account, now) + weight)
    barred = is_banned(account, now) or penalties >= BAR_AT
    reputation = Reputation() if barred else account.reputation
    return replace(
        account, penalties=penalties, penalized_at=now, barred=barred, reputation=reputation
    )


def reputation_now(account: Account, now: float) -> float:
    """Return the reputation in [0, 1]; penalties reduce it, a ban sets it to 0."""
    if is_banned(account, now):
        return 0.0
    factor = max(0.0, 1.0 - penalties_now(account, now) / BAR_AT)
    return min(1.0, account.reputation.now(now) / FULL) * factor


class Accounts:
    """Accounts by author, kept in the journal, at most ``MAX_ACCOUNTS``.

    At the limit the least recently changed leaves: others first, then banned, promising, proven.
    ``heard`` is called with every refusal, on the thread where it happens.
    """

    def __init__(self, journal: Journal, clock: Clock, heard: RefusalHeard | None = None) -> None:
        self._journal = journal
        self._clock = clock
        self._heard = heard
        self.blocked: frozenset[bytes] = frozenset()  # authors whose data the user ignores

    def get(self, author: bytes) -> Account:
        """Return the author's account, empty for an unknown one."""
        accounts = self._where("author=?", author)
        refused = self._journal.read("SELECT reason, n FROM refusals WHERE author=?", (author,))
        return replace(accounts[0], refused=dict(refused)) if accounts else Account(author)

    def banned(self, author: bytes) -> bool:
        """Return whether this author's data is ignored now."""
        return author in self.blocked or is_banned(self.get(author), self._clock.time())

    def ignored(self) -> frozenset[bytes]:
        """Return all authors whose data is ignored now, as :meth:`banned` does for one."""
        now = self._clock.time()
        accounts = self._where("barred AND struck_at>?", now - LONGEST_BAN_S)
        return self.blocked.union(a.author for a in accounts if is_banned(a, now))

    def reputation(self, author: bytes) -> float:
        """Return the author's reputation, from 0 for an unknown author to 1."""
        return reputation_now(self.get(author), self._clock.time())

    def proven(self) -> frozenset[bytes]:
        now = self._clock.time()
        accounts = self._where("earned>=?", PROVEN * FULL)
        return frozenset(a.author for a in accounts if reputation_now(a, now) >= PROVEN)

    def reputations(self) -> dict[bytes, float]:
        """Return the reputation of every author that has any."""
        now = self._clock.time()
        accounts = self._where("earned>0")
        return {a.author: value for a in accounts if (value := reputation_now(a, now)) > 0}

    def tried(self) -> dict[bytes, float]:
        """Return what authors with a group in an update have earned (:class:`Reputation`).

        A penalty counts as such a group without use, because it must not precede unknown authors.
        It counts also after a ban, which removes the reputation. Honest texts are sometimes slow,
        so a lighter penalty than ``RELEASE_AT`` does not count.
        """
        now = self._clock.time()
        query = "SELECT author, earned, earned_at FROM accounts WHERE earned_at>0 OR strikes>=?"
        rows = self._journal.read(query, (RELEASE_AT,))
        return {author: Reputation(earned, time).now(now) for author, earned, time in rows}

    def prove(self, groups: Iterable[tuple[bytes, float]]) -> None:
        """Record how useful peer groups were to an update: authors and values in [0, 1].

        A banned author earns nothing.
        """
        now = self._clock.time()
        with self._journal.transaction() as connection:
            for author, usefulness in groups:
                account = self._load(connection, author)
                if not is_banned(account, now):
                    reputation = account.reputation.after(usefulness, now)
                    self._store(connection, replace(account, reputation=reputation))

    def count_bytes(self, author: bytes, *, received: int = 0, sent: int = 0) -> None:
        """Add payload bytes received from or sent to the author."""
        with self._journal.transaction() as connection:
            account = self._load(connection, author)
            received, sent = account.bytes_in + received, account.bytes_out + sent
            self._store(connection, replace(account, bytes_in=received, bytes_out=sent))

    def admit(self, author: bytes, groups: int) -> None:
        with self._journal.transaction() as connection:
            account = self._load(connection, author)
            admitted = account.admitted + groups
            latest = self._clock.time() if groups else account.admitted_at
            self._store(connection, replace(account, admitted=admitted, admitted_at=latest))

    def charge(self, author: bytes, seconds: float) -> None:
        """Add verification time of the author's groups."""
        with self._journal.transaction() as connection:
            account = self._load(connection, author)
            self._store(connection, replace(account, seconds=account.seconds + seconds))

    def refuse(self, author: bytes, reason: str, n: int = 1) -> None:
        """Add refusals for ``reason``, with its penalties by :mod:`swarm.verification`."""
        weight = n * penalty_weight(reason)
        now = self._clock.time()
        with self._journal.transaction() as connection:
            account = self._load(connection, author)
            new = penalized(account, weight, now) if weight else account
            self._store(connection, new)
            connection.execute(
                "INSERT INTO refusals VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n=n+excluded.n",
                (author, reason, n),
            )
        if self._heard:
            self._heard(author, reason, n)
        if is_banned(new, now) and not is_banned(account, now):
            peer = peer_id_of(author)
            log.warning("peer %s is banned, last penalty for %s", peer, reason)
            if account.reputation.at:
                remedy = f"To undo them, stop the node and run: swarm-node block {peer} --undo"
                log.warning("updates used groups of the banned peer %s. %s", peer, remedy)

    def follow_clock(self) -> None:
        """Move times that lie ahead of the clock to now, or bans of a wrong clock would last."""
        now = self._clock.time()
        updates = ", ".join(f"{column}=min({column}, {now})" for column in _TIMES)
        with self._journal.transaction() as connection:
            connection.execute(f"UPDATE accounts SET {updates}")

    def snapshot(self) -> list[Account]:
        """Return all accounts, the most recently changed first."""
        return all_accounts(self._journal.read)

    def _where(self, condition: str, *values: bytes | float) -> list[Account]:
        query = f"SELECT {_COLUMNS} FROM accounts WHERE {condition}"
        return [_account(row) for row in self._journal.read(query, values)]

    def _load(self, connection: sqlite3.Connection, author: bytes) -> Account:
        query = f"SELECT {_COLUMNS} FROM accounts WHERE author=?"
        row = connection.execute(query, (author,)).fetchone()
        if row:
            return _account(row)
        (count,) = connection.execute("SELECT count(*) FROM accounts").fetchone()
        if count >= MAX_ACCOUNTS:
            self._forget_idlest(connection, self._clock.time())
        return Account(author)

    def _store(self, connection: sqlite3.Connection, account: Account) -> None:
        connection.execute(
            f"REPLACE INTO accounts ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(account.author, account.bytes_in, account.bytes_out, account.admitted),
                *(account.penalties, account.penalized_at, account.barred, self._clock.time()),
                *(account.reputation.earned, account.reputation.at),
                *(account.seconds, account.admitted_at),
            ),
        )

    @staticmethod
    def _forget_idlest(connection: sqlite3.Connection, now: float) -> None:
        priority = (
            f"CASE WHEN earned>={PROVEN * FULL} THEN 3 WHEN earned>={PROMISING} THEN 2 "
            f"ELSE barred AND struck_at>{now - LONGEST_BAN_S} END"
        )
        idlest = f"SELECT author FROM accounts ORDER BY {priority}, touched LIMIT 1"
        for table in ("refusals", "accounts"):
            connection.execute(f"DELETE FROM {table} WHERE author=({idlest})")


def all_accounts(read: Callable[[str], list[tuple[Any, ...]]]) -> list[Account]:
    """Return all accounts, the most recently changed first; ``read`` runs a query."""
    refusals: dict[bytes, dict[str, int]] = {}
    for author, reason, n in read("SELECT author, reason, n FROM refusals"):
        refusals.setdefault(author, {})[reason] = n
    rows = read(f"SELECT {_COLUMNS} FROM accounts ORDER BY touched DESC, author")
    return [_account(row, refusals.get(row[0], {})) for row in rows]


def _account(row: tuple[Any, ...], refusals: Mapping[str, int] | None = None) -> Account:
    """Convert a row of ``_COLUMNS``, which have the order of the account's fields."""
    *counts, barred, touched, earned, time, seconds, admitted_at = row
    reputation = Reputation(earned, time)
    values = [*counts, bool(barred), touched, reputation, seconds, admitted_at, refusals or {}]
    return Account(*values)


def read_accounts(path: Path) -> list[Account]:
    """Return a journal file's accounts, newest change first; raises ``JournalError``."""
    if not path.exists():
        return []
    # Without a writer there is no WAL file, and reading must not create one.
    suffix = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode=ro{suffix}"
    with (
        named_errors(path),
        closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection,
    ):
        check_layout(connection, path)
        return all_accounts(lambda query: connection.execute(query).fetchall())


MAX_TALLIED = 4_096
NOBODY = b""  # stands for all authors beyond MAX_TALLIED


class RefusalCounts:
    """Thread-safe counts of rejections by author and reason."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[bytes, str]] = Counter()
        self._lock = threading.Lock()

    def refused(self, author: bytes, reason: str, n: int) -> None:
        """Count rejections; a callback of :meth:`Accounts.refuse`."""
        with self._lock:
            is_tracked = (author, reason) in self._counts or len(self._counts) < MAX_TALLIED
            self._counts[author if is_tracked else NOBODY, reason] += n

    def take(self) -> Counter[tuple[bytes, str]]:
        """Return and reset the counts."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts
