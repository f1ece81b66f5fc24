"""Own groups on the disk from their beginning until an update takes them."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from node.rollout.own_task import OwnTask
from protocol.rollout import Finish, Tokens
from swarm.journal import Journal
from swarm.task_ref import TaskRef

OWN = b""
"""Author of own groups in the journal's record of what updates used."""


class Place(NamedTuple):
    """One completion of one group."""

    ticket: int
    number: int


@dataclass(frozen=True, slots=True)
class UnfinishedCompletion:
    """What a completion has so far; ``finish`` is None while it goes on."""

    tokens: Tokens
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """A group that was begun and not taken.

    Attributes:
        ticket: names the group in this run folder.
        version: updates done when it was begun.
        completions: those that have anything, by number.
    """

    ticket: int
    task: OwnTask
    version: int
    completions: dict[int, UnfinishedCompletion]


class UnfinishedGroups:
    """What was begun and is not used, across any crash.

    A group is struck off in the very transaction that marks it as used, which is on the disk
    before the learner sees it: a crash wastes what an update had taken and trains on nothing twice.

    Args:
        journal: where everything lies.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def begin(self, groups: Iterable[tuple[int, OwnTask]], version: int) -> None:
        """Note new groups by their tickets; ``version`` counts the updates done."""
        rows = [
            (ticket, own.epoch, own.index, own.ref.env, own.ref.level, own.ref.seed, version)
            for ticket, own in groups
        ]
        with self._journal.transaction() as connection:
            connection.executemany("INSERT INTO begun VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def write(self, completions: Iterable[tuple[Place, UnfinishedCompletion]]) -> None:
        """Keep what these completions have so far."""
        rows = [(*place, *_packed(each)) for place, each in completions]
        if not rows:
            return
        with self._journal.transaction() as connection:
            connection.executemany("REPLACE INTO written VALUES (?, ?, ?, ?, ?, ?)", rows)

    def take(self, tickets: Sequence[int], step: int) -> None:
        """Mark these groups as used by the update after policy step ``step``, durably."""
        rows = [(OWN, step, ticket) for ticket in tickets]
        with self._journal.transaction(durable=True) as connection:
            connection.executemany(
                "INSERT INTO used (author, epoch, number, step, trained) "
                "SELECT ?, epoch, number, ?, 0 FROM begun WHERE ticket=?",
                rows,
            )
            _strike(connection, tickets)

    def drop(self, tickets: Sequence[int]) -> None:
        """Give groups up."""
        with self._journal.transaction() as connection:
            _strike(connection, tickets)

    def rewind(self, version: int, step: int) -> int:
        """Go back with the policy to ``step``, which ``version`` updates led to.

        Tokens of policies that are no more are struck off, and groups begun after it count as
        begun now; returns how many tokens that were.
        """
        cut = []
        lost = 0
        for place, completion in self._completions():
            tokens = completion.tokens
            kept = sum(v <= step for v in tokens.versions)
            if missing := len(tokens.ids) - kept:
                lost += missing
                cut.append((place, UnfinishedCompletion(tokens.first(kept))))
        self.write(cut)
        with self._journal.transaction() as connection:
            connection.execute("UPDATE begun SET version=min(version, ?)", (version,))
        return lost

    def groups(self) -> list[UnfinishedGroup]:
        """Everything here, in the order in which it was begun."""
        rows = self._journal.read(
            "SELECT ticket, version, env, level, seed, epoch, number FROM begun ORDER BY ticket"
        )
        kept = {
            ticket: UnfinishedGroup(
                ticket, OwnTask(TaskRef(env, level, seed), epoch, index), version, {}
            )
            for ticket, version, env, level, seed, epoch, index in rows
        }
        for place, completion in self._completions():
            kept[place.ticket].completions[place.number] = completion
        return list(kept.values())

    def _completions(self) -> list[tuple[Place, UnfinishedCompletion]]:
        rows = self._journal.read(
            "SELECT ticket, place, finish, ids, logprobs, versions FROM written ORDER BY 1, 2"
        )
        return [(Place(*row[:2]), _unpacked(*row[2:])) for row in rows]


def _strike(connection: sqlite3.Connection, tickets: Sequence[int]) -> None:
    rows = [(ticket,) for ticket in tickets]
    connection.executemany("DELETE FROM begun WHERE ticket=?", rows)
    connection.executemany("DELETE FROM written WHERE ticket=?", rows)


def _packed(completion: UnfinishedCompletion) -> tuple[int | None, bytes, bytes, bytes]:
    """Little-endian words of 32 bits: a log-prob keeps the precision it was worked out in."""
    tokens = completion.tokens
    n = len(tokens.ids)
    return (
        completion.finish,
        struct.pack(f"<{n}I", *tokens.ids),
        struct.pack(f"<{n}f", *tokens.logprobs),
        struct.pack(f"<{n}I", *tokens.versions),
    )


def _unpacked(
    finish: int | None, ids: bytes, logprobs: bytes, versions: bytes
) -> UnfinishedCompletion:
    n = len(ids) // 4
    tokens = Tokens(
        struct.unpack(f"<{n}I", ids),
        struct.unpack(f"<{n}f", logprobs),
        struct.unpack(f"<{n}I", versions),
    )
    return UnfinishedCompletion(tokens, None if finish is None else Finish(finish))
