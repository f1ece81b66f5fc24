"""Groups on their way from their questions to whole completions."""

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
from node.trajectories.trajectory import OpenTrajectory, TurnLimits
from node.trajectories.turns import Turns
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


@dataclass(slots=True)
class RunningGroup:
    """What is known of a group so far.

    Attributes:
        ticket: its name.
        size: completions to be written.
        kept: what an earlier run has left of them, by number.
        prompt_ids: empty until the prompt is known.
        completions: none until :meth:`open`.
        scored: the whole group, once it has its verdict.
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
        """A group of an earlier run, whose ``size`` may have been another."""
        return cls(kept.ticket, kept.task, size, kept.completions)

    @property
    def complete(self) -> bool:
        """Whether every completion has ended."""
        return bool(self.completions) and all(each.over for each in self.completions)

    def open(self, policy: Policy, cap: int) -> None:
        """Have its completions as far as they were written.

        Args:
            cap: most tokens of a turn; one that an earlier run began may have more.
        """
        self.completions = [
            OpenTrajectory(self.task.ref, [*self.prompt_ids]) for _ in range(self.size)
        ]
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


class GroupWriter:
    """Has an engine write completions, and environments answer their turns, each by itself.

    All of it happens on the caller's thread but for what environments do; what is written is kept
    on the disk.

    Args:
        policy: whose engine it is.
        scorer: plays the environments.
        sampling: of answers in one turn; turns have the limits' own length.
        unfinished: where what is written is kept.
    """

    def __init__(
        self,
        policy: Policy,
        engine: RolloutEngine,
        scorer: Scorer,
        limits: TurnLimits,
        sampling: Sampling,
        unfinished: UnfinishedGroups,
    ) -> None:
        self._policy = policy
        self._engine = engine
        self._scorer = scorer
        self._once = sampling
        self._turn = replace(sampling, max_new_tokens=limits.turn_tokens)
        self._unfinished = unfinished
        self._turns = Turns(policy, scorer, limits, engine.nudge)
        self._open: dict[int, tuple[RunningGroup, Place]] = {}
        self._waiting: list[OpenTrajectory] = []
        self._complete: list[RunningGroup] = []
        self._quiet = False
        self._newest: tuple[TrainingGroup, ...] = ()

    def newest(self) -> Sequence[TrainingGroup]:
        """Turns that have come in last, each as a group by itself, without its reward.

        May be called from any thread.
        """
        return self._newest

    def add(self, group: RunningGroup) -> None:
        """Have a group written whose question is known."""
        group.open(self._policy, self._sampling(group).max_new_tokens)
        for number, each in enumerate(group.completions):
            self._open[each.key] = group, Place(group.ticket, number)
            if each.played is None or each.played.turns[-1].observation is not None:
                self._waiting.append(each)
            else:
                self._answer(each)

    def go_on(self) -> None:
        """Write again after a :meth:`halt`."""
        self._quiet = False

    def look(self, seconds: float) -> list[RunningGroup]:
        """Take what has come in and hand on what follows from it; groups that became complete.

        Waits for the engine only, and at most so long.
        """
        self._submit()
        self._finish(self._engine.poll(seconds))
        self._read()
        complete, self._complete = self._complete, []
        return complete

    def halt(self) -> None:
        """Stop the engine and keep what it has not finished, to go on with it first."""
        self._quiet = True
        kept = []
        for key, begun in self._engine.halt():
            if key not in self._open:
                continue  # of a play beside that failed
            group, place = self._open[key]
            each = group.completions[place.number]
            each.begun = begun
            kept.append((_place(each, place), UnfinishedTurn(begun)))
            self._waiting.append(each)
        self._unfinished.write(kept)
        self._finish(self._engine.poll(0.0))

    def _submit(self) -> None:
        if self._quiet or not self._waiting:
            return
        waiting = sorted(self._waiting, key=lambda each: self._open[each.key][1])
        for sampling in (self._once, self._turn):
            lasts = sampling is self._turn
            wanted = [each.wanted(lasts=lasts) for each in waiting if self._plays(each) == lasts]
            if wanted:
                self._engine.submit(wanted, sampling)
            # What the engine refuses waits on: the next look fails as well, and says so.
            self._waiting = [each for each in self._waiting if self._plays(each) != lasts]

    def _finish(self, finished: Sequence[tuple[int, Sample]]) -> None:
        written = []
        for key, sample in finished:
            group, place = self._open[key]
            each = group.completions[place.number]
            # Replaced as a whole, as the learner's thread reads it.
            self._newest = (*self._newest, _alone(each, sample))[-MOST_COMPLETIONS:]
            written.append((_place(each, place), UnfinishedTurn(sample.tokens, sample.finish)))
            each.add(sample)
            self._answer(each)
        self._unfinished.write(written)

    def _answer(self, each: OpenTrajectory) -> None:
        """Have the last turn answered, if there is anybody to answer it."""
        if self._plays(each):
            self._turns.ask([each])
        else:
            each.end(each.so_far)
            self._close(each)

    def _read(self) -> None:
        """Go on behind what environments have answered."""
        written = []
        for each in self._turns.answered():
            if each.over:
                self._engine.forget([each.key])
                self._close(each)
            else:
                last = each.so_far.turns[-1]
                turn = UnfinishedTurn(last.sample.tokens, last.sample.finish, last.observation)
                place = self._open[each.key][1]
                written.append((place._replace(turn=len(each.so_far.turns) - 1), turn))
                self._waiting.append(each)
        self._unfinished.write(written)

    def _close(self, each: OpenTrajectory) -> None:
        group, _ = self._open.pop(each.key)
        if group.complete:
            self._complete.append(group)

    def _plays(self, each: OpenTrajectory) -> bool:
        return each.task.env in self._scorer.environments

    def _sampling(self, group: RunningGroup) -> Sampling:
        return self._turn if group.task.ref.env in self._scorer.environments else self._once


def _place(each: OpenTrajectory, place: Place) -> Place:
    """Where the turn lies that is being written."""
    return place._replace(turn=len(each.played.turns) if each.played else 0)


def _alone(each: OpenTrajectory, sample: Sample) -> TrainingGroup:
    done = (TrainingCompletion.own(sample.tokens),)
    return TrainingGroup(tuple(each.ids), done, (0.0,), own=True)
