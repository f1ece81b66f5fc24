"""Generation of groups from prompts to complete completions, kept in the journal."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from node.engines.engine import RolloutEngine, Sample, Sampling
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.steps import MOST_COMPLETIONS
from node.policy.policy import Policy
from node.rollout.groups import OwnGroup, OwnTask
from node.tasks.scorer import Scorer
from node.trajectories.player import TurnScheduler
from node.trajectories.trajectory import OpenTrajectory, TurnLimits
from protocol.rollout import Finish, Tokens
from swarm.groups import TaskRef
from swarm.journal import Journal

OWN = b""  # Author of local groups in the journal's table of used groups.


class TurnPlace(NamedTuple):
    """One turn of one completion of one group."""

    ticket: int
    number: int
    turn: int = 0


@dataclass(frozen=True, slots=True)
class UnfinishedTurn:
    """A turn so far; ``finish`` is None while it continues."""

    tokens: Tokens
    finish: Finish | None = None
    observation: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """A group that was started and not taken; ``version`` counts updates before it."""

    ticket: int
    task: OwnTask
    version: int
    completions: dict[int, tuple[UnfinishedTurn, ...]]


class UnfinishedGroups:
    """Started and unused groups in the journal, kept across crashes.

    One transaction deletes a group and marks it as used, on disk before the learner sees it:
    nothing is trained on twice.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def begin(self, groups: Iterable[tuple[int, OwnTask]], version: int) -> None:
        """Store new groups by ticket; ``version`` counts the updates done."""
        rows = [
            (ticket, own.epoch, own.index, own.ref.env, own.ref.level, own.ref.seed, version)
            for ticket, own in groups
        ]
        with self._journal.transaction() as connection:
            connection.executemany("INSERT INTO begun VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def write(self, turns: Iterable[tuple[TurnPlace, UnfinishedTurn]]) -> None:
        rows = [(*place, *_packed(each)) for place, each in turns]
        if not rows:
            return
        with self._journal.transaction() as connection:
            connection.executemany("REPLACE INTO written VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def take(self, tickets: Sequence[int], step: int) -> None:
        """Mark groups durably as used by the update after policy step ``step``."""
        rows = [(OWN, step, ticket) for ticket in tickets]
        with self._journal.transaction(durable=True) as connection:
            connection.executemany(
                "INSERT INTO used (author, epoch, number, step, trained) "
                "SELECT ?, epoch, number, ?, 0 FROM begun WHERE ticket=?",
                rows,
            )
            _delete(connection, tickets)

    def drop(self, tickets: Sequence[int]) -> None:
        with self._journal.transaction() as connection:
            _delete(connection, tickets)

    def rewind(self, version: int, step: int) -> int:
        """Roll back to ``step``, after ``version`` updates; return deleted token count.

        Groups started later count as started now.
        """
        cut: dict[tuple[int, int], tuple[TurnPlace, UnfinishedTurn]] = {}
        lost = 0
        for place, turn in self._turns():
            tokens, completion = turn.tokens, (place.ticket, place.number)
            kept = sum(v <= step for v in tokens.versions) if completion not in cut else 0
            lost += len(tokens.ids) - kept
            if kept < len(tokens.ids):
                # The environment's answer to the deleted rest and all later turns are invalid.
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
        """Return all groups in the order in which they started."""
        rows = self._journal.read(
            "SELECT ticket, version, env, level, seed, epoch, number FROM begun ORDER BY ticket"
        )
        kept: dict[int, UnfinishedGroup] = {}
        for ticket, version, env, level, seed, epoch, index in rows:
            task = OwnTask(TaskRef(env, level, seed), epoch, index)
            kept[ticket] = UnfinishedGroup(ticket, task, version, {})
        for place, turn in self._turns():
            completions = kept[place.ticket].completions
            completions[place.number] = (*completions.get(place.number, ()), turn)
        return list(kept.values())

    def _turns(self) -> list[tuple[TurnPlace, UnfinishedTurn]]:
        rows = self._journal.read(
            "SELECT ticket, place, turn, finish, ids, logprobs, versions, observation "
            "FROM written ORDER BY 1, 2, 3"
        )
        return [(TurnPlace(*row[:3]), _unpacked(*row[3:])) for row in rows]


def _delete(connection: sqlite3.Connection, tickets: Sequence[int]) -> None:
    rows = [(ticket,) for ticket in tickets]
    connection.executemany("DELETE FROM begun WHERE ticket=?", rows)
    connection.executemany("DELETE FROM written WHERE ticket=?", rows)


def _packed(turn: UnfinishedTurn) -> tuple[int | None, bytes, bytes, bytes, str | None]:
    """Pack in little-endian 32-bit words, the precision log-probs are computed in."""
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


@dataclass(slots=True)
class RunningGroup:
    """State of a group; prompt and completions are empty until they are known.

    ``kept`` has turns from an earlier run, by completion number.
    """

    ticket: int
    task: OwnTask
    size: int
    kept: dict[int, tuple[UnfinishedTurn, ...]] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    completions: list[OpenTrajectory] = field(default_factory=list)
    scored: OwnGroup | None = None

    @classmethod
    def of(cls, kept: UnfinishedGroup, size: int) -> RunningGroup:
        """Create a group from an earlier run, whose ``size`` may differ."""
        return cls(kept.ticket, kept.task, size, kept.completions)

    @property
    def complete(self) -> bool:
        return bool(self.completions) and all(each.over for each in self.completions)

    def open(self, policy: Policy, cap: int) -> None:
        """Create the completions with their turns so far; ``cap`` limits a turn's tokens."""
        task, ids = self.task.ref, self.prompt_ids
        self.completions = [OpenTrajectory(task, [*ids]) for _ in range(self.size)]
        for number, each in enumerate(self.completions):
            _restore(each, self.kept.get(number, ()), policy, cap)


def _restore(
    each: OpenTrajectory, kept: Sequence[UnfinishedTurn], policy: Policy, cap: int
) -> None:
    for turn in kept:
        tokens, finish = turn.tokens, turn.finish
        if finish is None and len(tokens.ids) >= cap:
            finish = Finish.LENGTH
        if finish is None:
            each.begun = tokens
        else:
            each.add(Sample(tokens, finish, policy.decode(tokens.ids)))
        if turn.observation is not None:
            each.read(turn.observation, policy.encode_observation(turn.observation))


@dataclass(eq=False)
class GroupWriter:
    """Generation of completions with an engine, and of environments' answers to turns.

    All work runs on the caller's thread, except that of environments. Generated turns are kept on
    disk. ``sampling`` is for single-turn answers; turns have the limits' own length.
    """

    policy: Policy
    engine: RolloutEngine
    scorer: Scorer
    limits: TurnLimits
    sampling: Sampling
    unfinished: UnfinishedGroups

    def __post_init__(self) -> None:
        self._turn = replace(self.sampling, max_new_tokens=self.limits.turn_tokens)
        self._turns = TurnScheduler(self.policy, self.scorer, self.limits, self.engine.nudge)
        self._open: dict[int, tuple[RunningGroup, TurnPlace]] = {}
        self._waiting: list[OpenTrajectory] = []
        self._complete: list[RunningGroup] = []
        self._paused = False
        self._newest: tuple[TrainingGroup, ...] = ()

    def newest(self) -> Sequence[TrainingGroup]:
        """Return the latest turns as groups without reward; callable from any thread."""
        return self._newest

    def add(self, group: RunningGroup) -> None:
        """Start to generate a group whose prompt is known."""
        played = group.task.ref.env in self.scorer.environments
        group.open(self.policy, (self._turn if played else self.sampling).max_new_tokens)
        for number, each in enumerate(group.completions):
            self._open[each.key] = group, TurnPlace(group.ticket, number)
            if each.played is None or each.played.turns[-1].observation is not None:
                self._waiting.append(each)
            else:
                self._answer(each)

    def resume(self) -> None:
        self._paused = False

    def look(self, seconds: float) -> list[RunningGroup]:
        """Process arrivals, awaiting the engine up to ``seconds``; return complete groups."""
        self._submit()
        self._finish(self.engine.poll(seconds))
        self._read()
        complete, self._complete = self._complete, []
        return complete

    def pause(self) -> None:
        """Stop the engine and keep its unfinished turns, which continue first."""
        self._paused = True
        kept = []
        for key, begun in self.engine.pause():
            if key not in self._open:
                continue  # from another play that failed
            group, place = self._open[key]
            each = group.completions[place.number]
            each.begun = begun
            kept.append((_place(each, place), UnfinishedTurn(begun)))
            self._waiting.append(each)
        self.unfinished.write(kept)
        self._finish(self.engine.poll(0.0))

    def _submit(self) -> None:
        if self._paused or not self._waiting:
            return
        waiting = sorted(self._waiting, key=lambda each: self._open[each.key][1])
        for sampling in (self.sampling, self._turn):
            lasts = sampling is self._turn
            wanted = [each.wanted(lasts=lasts) for each in waiting if self._plays(each) == lasts]
            if wanted:
                self.engine.submit(wanted, sampling)
            # Requests that the engine refuses stay queued: the next look raises the error again.
            self._waiting = [each for each in self._waiting if self._plays(each) != lasts]

    def _finish(self, finished: Sequence[tuple[int, Sample]]) -> None:
        rows = []
        for key, sample in finished:
            group, place = self._open[key]
            each = group.completions[place.number]
            # Replaced as a whole, because the learner's thread reads it.
            done = (TrainingCompletion.own(sample.tokens),)
            alone = TrainingGroup(tuple(each.ids), done, (0.0,), own=True)
            self._newest = (*self._newest, alone)[-MOST_COMPLETIONS:]
            rows.append((_place(each, place), UnfinishedTurn(sample.tokens, sample.finish)))
            each.add(sample)
            self._answer(each)
        self.unfinished.write(rows)

    def _answer(self, each: OpenTrajectory) -> None:
        if self._plays(each):
            self._turns.ask([each])
        else:
            each.end(each.so_far)
            self._close(each)

    def _read(self) -> None:
        rows = []
        for each in self._turns.answered():
            if each.over:
                self.engine.abort([each.key])
                self._close(each)
            else:
                last = each.so_far.turns[-1]
                turn = UnfinishedTurn(last.sample.tokens, last.sample.finish, last.observation)
                place = self._open[each.key][1]
                rows.append((place._replace(turn=len(each.so_far.turns) - 1), turn))
                self._waiting.append(each)
        self.unfinished.write(rows)

    def _close(self, each: OpenTrajectory) -> None:
        group, _ = self._open.pop(each.key)
        if group.complete:
            self._complete.append(group)

    def _plays(self, each: OpenTrajectory) -> bool:
        return each.task.env in self.scorer.environments


def _place(each: OpenTrajectory, place: TurnPlace) -> TurnPlace:
    return place._replace(turn=len(each.played.turns) if each.played else 0)
