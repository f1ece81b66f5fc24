"""Own groups on the disk from their beginning until an update takes them."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from node.rollout.own_task import OwnTask
from protocol.rollout import Finish, Tokens
from swarm.groups import TaskRef
from swarm.journal import Journal

OWN = b""
"""Author of own groups in the journal's record of what updates used."""


class Place(NamedTuple):
    """One turn of one completion of one group."""

    ticket: int
    number: int
    turn: int = 0


@dataclass(frozen=True, slots=True)
class UnfinishedTurn:
    """What a turn of a completion has so far.

    Attributes:
        finish: None while it goes on.
        observation: what an environment has answered, where another turn follows.
    """

    tokens: Tokens
    finish: Finish | None = None
    observation: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """A group that was begun and not taken.

    Attributes:
        ticket: names the group in this run folder.
        version: updates done when it was begun.
        completions: the turns of those that have anything, by number.
    """

    ticket: int
    task: OwnTask
    version: int
    completions: dict[int, tuple[UnfinishedTurn, ...]]


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

    def write(self, turns: Iterable[tuple[Place, UnfinishedTurn]]) -> None:
        """Keep what these turns have so far."""
        rows = [(*place, *_packed(each)) for place, each in turns]
        if not rows:
            return
        with self._journal.transaction() as connection:
            connection.executemany("REPLACE INTO written VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

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
        cut: dict[tuple[int, int], tuple[Place, UnfinishedTurn]] = {}
        lost = 0
        for place, turn in self._turns():
            tokens, completion = turn.tokens, (place.ticket, place.number)
            kept = sum(v <= step for v in tokens.versions) if completion not in cut else 0
            lost += len(tokens.ids) - kept
            if kept < len(tokens.ids):
                # What an environment answered to the rest of it, and all that followed, is void.
                cut.setdefault(completion, (place, UnfinishedTurn(tokens.first(kept))))
        with self._journal.transaction() as connection:
            connection.executemany(
                "DELETE FROM written WHERE ticket=? AND place=? AND turn>?",
                [place for place, _ in cut.values()],
            )
            connection.execute("UPDATE begun SET version=min(version, ?)", (version,))
        self.write(cut.values())
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
        for place, turn in self._turns():
            completions = kept[place.ticket].completions
            completions[place.number] = (*completions.get(place.number, ()), turn)
        return list(kept.values())

    def _turns(self) -> list[tuple[Place, UnfinishedTurn]]:
        """Everything that is written, the turns of a completion one after the other."""
        rows = self._journal.read(
            "SELECT ticket, place, turn, finish, ids, logprobs, versions, observation "
            "FROM written ORDER BY 1, 2, 3"
        )
        return [(Place(*row[:3]), _unpacked(*row[3:])) for row in rows]


def _strike(connection: sqlite3.Connection, tickets: Sequence[int]) -> None:
    rows = [(ticket,) for ticket in tickets]
    connection.executemany("DELETE FROM begun WHERE ticket=?", rows)
    connection.executemany("DELETE FROM written WHERE ticket=?", rows)


def _packed(turn: UnfinishedTurn) -> tuple[int | None, bytes, bytes, bytes, str | None]:
    """Little-endian words of 32 bits: a log-prob keeps the precision it was worked out in."""
    tokens = turn.tokens
    n = len(tokens.ids)
    return (
        turn.finish,
        struct.pack(f"<{n}I", *tokens.ids),
        struct.pack(f"<{n}f", *tokens.logprobs),
        struct.pack(f"<{n}I", *tokens.versions),
        turn.observation,
    )


def _unpacked(
    finish: int | None, ids: bytes, logprobs: bytes, versions: bytes, observation: str | None
) -> UnfinishedTurn:
    n = len(ids) // 4
    tokens = Tokens(
        struct.unpack(f"<{n}I", ids),
        struct.unpack(f"<{n}f", logprobs),
        struct.unpack(f"<{n}I", versions),
    )
    return UnfinishedTurn(tokens, None if finish is None else Finish(finish), observation)
