"""What a simulated node remembers of authors, in memory: nothing of it is to outlive a crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from swarm.common.clock import Clock
from swarm.journal import Journal
from swarm.reputation import PROVEN, Account, Accounts, is_banned, standing, struck
from swarm.verification import strike_weight


class AccountsInMemory(Accounts):
    """:class:`swarm.reputation.Accounts` by the same rules, without a database below and a bound.

    Bytes are not counted: the network's tallies are.
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

    def standing(self, author: bytes) -> float:
        account = self._held.get(author)
        return standing(account, self._now()) if account is not None else 0.0

    def proven(self) -> frozenset[bytes]:
        return frozenset(a for a, value in self.standings().items() if value >= PROVEN)

    def standings(self) -> dict[bytes, float]:
        found = {author: self.standing(author) for author in self._held}
        return {author: value for author, value in found.items() if value > 0}

    def tried(self) -> dict[bytes, float]:
        now = self._now()
        return {a: held.proof.now(now) for a, held in self._held.items() if held.proof.at > 0}

    def prove(self, groups: Iterable[tuple[bytes, float]]) -> None:
        now = self._now()
        for author, usefulness in groups:
            account = self.get(author)
            self._held[author] = replace(account, proof=account.proof.after(usefulness, now))

    def count_bytes(self, author: bytes, *, received: int = 0, sent: int = 0) -> None:
        pass

    def admit(self, author: bytes, groups: int) -> None:
        account, now = self.get(author), self._now()
        self._held[author] = replace(account, admitted=account.admitted + groups, admitted_at=now)

    def charge(self, author: bytes, seconds: float) -> None:
        account = self.get(author)
        self._held[author] = replace(account, seconds=account.seconds + seconds)

    def refuse(self, author: bytes, reason: str, n: int = 1) -> None:
        account, weight = self.get(author), n * strike_weight(reason)
        refused = {**account.refused, reason: account.refused.get(reason, 0) + n}
        after = struck(account, weight, self._now()) if weight else account
        self._held[author] = replace(after, refused=refused)

    def snapshot(self) -> list[Account]:
        return sorted(self._held.values(), key=lambda account: account.author)
