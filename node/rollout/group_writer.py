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
from node.rollout.groups import LocalGroup, LocalTask
from node.tasks.scorer import Scorer
from node.trajectories.player import TurnScheduler
from node.trajectories.trajectory import OpenTrajectory, TurnLimits
from protocol.rollout import Finish, Tokens
from swarm.groups import TaskRef
from swarm.journal import Journal
from swarm.pool import OWN


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


@dataclass(slots=True)
class RunningGroup:
    """A group that was started and not taken; ``version`` counts updates before it.

    ``played``: an environment answers its turns; otherwise a completion's only turn is the answer.
    Prompt and completions are empty until they are known. ``kept`` has turns from an earlier run,
    in which the group size may differ, by completion number.
    """

    ticket: int
    task: LocalTask
    version: int
    kept: dict[int, tuple[UnfinishedTurn, ...]] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    completions: list[OpenTrajectory] = field(default_factory=list)
    scored: LocalGroup | None = None
    played: bool = False

    @property
    def complete(self) -> bool:
        return bool(self.completions) and all(completion.over for completion in self.completions)

    def open(self, policy: Policy, size: int, cap: int) -> None:
        """Create ``size`` completions with their turns so far, of up to ``cap`` tokens each."""
        task, ids = self.task.ref, self.prompt_ids
        self.completions = [OpenTrajectory(task, [*ids], number) for number in range(size)]
        for trajectory in self.completions:
            _resume(trajectory, self.kept.get(trajectory.number, ()), policy, cap)

    def at(self, trajectory: OpenTrajectory, turn: int) -> TurnPlace:
        return TurnPlace(self.ticket, trajectory.number, turn)


def _resume(traj: OpenTrajectory, kept: Sequence[UnfinishedTurn], policy: Policy, cap: int) -> None:
    for turn in kept:
        tokens, finish = turn.tokens, turn.finish
        if finish is None and len(tokens.ids) >= cap:
            finish = Finish.LENGTH
        if finish is None:
            traj.begun = tokens
        else:
            traj.add(Sample(tokens, finish, policy.decode(tokens.ids)))
        if turn.observation is not None:
            traj.read(turn.observation, policy.encode_observation(turn.observation))


class UnfinishedGroups:
    """Started and unused groups in the journal, kept across crashes.

    One transaction deletes a group and marks it as used, on disk before the learner sees it:
    nothing is trained on twice.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def begin(self, groups: Iterable[tuple[int, LocalTask]], version: int) -> None:
        """Store new groups by ticket; ``version`` counts the updates done."""
        rows = [
            (ticket, task.epoch, task.index, task.ref.env, task.ref.level, task.ref.seed, version)
            for ticket, task in groups
        ]
        with self._journal.transaction() as connection:
            connection.executemany("INSERT INTO begun VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def write(self, turns: Iterable[tuple[TurnPlace, UnfinishedTurn]]) -> None:
        rows = [(*place, *_packed(turn)) for place, turn in turns]
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
        truncated: dict[tuple[int, int], tuple[TurnPlace, UnfinishedTurn]] = {}
        deleted = 0
        for place, turn in self._turns():
            tokens, completion = turn.tokens, (place.ticket, place.number)
            length = sum(v <= step for v in tokens.versions) if completion not in truncated else 0
            deleted += len(tokens.ids) - length
            if length < len(tokens.ids):
                # The environment's answer to the deleted rest and all later turns are invalid.
                truncated.setdefault(completion, (place, UnfinishedTurn(tokens.first(length))))
        with self._journal.transaction() as connection:
            connection.executemany(
                "DELETE FROM written WHERE ticket=? AND place=? AND turn>?",
                [place for place, _ in truncated.values()],
            )
            connection.execute("UPDATE begun SET version=min(version, ?)", (version,))
        self.write(truncated.values())
        return deleted

    def groups(self) -> list[RunningGroup]:
        """Return all groups in the order in which they started."""
        rows = self._journal.read(
            "SELECT ticket, version, env, level, seed, epoch, number FROM begun ORDER BY ticket"
        )
        groups: dict[int, RunningGroup] = {}
        for ticket, version, env, level, seed, epoch, index in rows:
            task = LocalTask(TaskRef(env, level, seed), epoch, index)
            groups[ticket] = RunningGroup(ticket, task, version)
        for place, turn in self._turns():
            turns = groups[place.ticket].kept
            turns[place.number] = (*turns.get(place.number, ()), turn)
        return list(groups.values())

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


@dataclass(eq=False)
class GroupWriter:
    """Generation of completions with an engine, and of environments' answers to turns.

    All work runs on the caller's thread, except that of environments. Generated turns are kept on
    disk. ``sampling`` is for single-turn answers; turns have the limits' own length.

    Each completion that is not over waits for its next submission, or the engine has it, or an
    environment has its last turn.
    """

    policy: Policy
    engine: RolloutEngine
    scorer: Scorer
    limits: TurnLimits
    sampling: Sampling
    unfinished: UnfinishedGroups
    group_size: int

    def __post_init__(self) -> None:
        self._turn_sampling = replace(self.sampling, max_new_tokens=self.limits.turn_tokens)
        self._turns = TurnScheduler(self.policy, self.scorer, self.limits, self.engine.nudge)
        # Completions that are not over, by key.
        self._running: dict[int, tuple[RunningGroup, OpenTrajectory]] = {}
        self._waiting: list[tuple[RunningGroup, OpenTrajectory]] = []
        self._complete: list[RunningGroup] = []
        self._paused = False
        self._newest: tuple[TrainingGroup, ...] = ()

    def newest(self) -> Sequence[TrainingGroup]:
        """Return the latest turns as groups without reward; callable from any thread."""
        return self._newest

    def add(self, group: RunningGroup) -> None:
        """Start to generate a group whose prompt is known."""
        group.played = played = group.task.ref.env in self.scorer.environments
        group.open(self.policy, self.group_size, self._sampling_of(played=played).max_new_tokens)
        for trajectory in group.completions:
            self._running[trajectory.key] = group, trajectory
            if trajectory.played is None or trajectory.played.turns[-1].observation is not None:
                self._waiting.append((group, trajectory))
            else:
                self._end_turn(group, trajectory)

    def resume(self) -> None:
        self._paused = False

    def poll(self, seconds: float) -> list[RunningGroup]:
        """Process arrivals, awaiting the engine up to ``seconds``; return complete groups."""
        self._submit()
        self._take_samples(self.engine.poll(seconds))
        self._take_observations()
        groups, self._complete = self._complete, []
        return groups

    def pause(self) -> None:
        """Stop the engine and keep its unfinished turns, which continue first."""
        self._paused = True
        rows = []
        for key, tokens in self.engine.pause():
            if key not in self._running:
                continue  # from another play that failed
            group, trajectory = self._running[key]
            trajectory.begun = tokens
            rows.append((group.at(trajectory, trajectory.turn), UnfinishedTurn(tokens)))
            self._waiting.append((group, trajectory))
        self.unfinished.write(rows)
        self._take_samples(self.engine.poll(0.0))

    def _sampling_of(self, *, played: bool) -> Sampling:
        return self._turn_sampling if played else self.sampling

    def _submit(self) -> None:
        if self._paused:
            return
        queue = sorted(self._waiting, key=lambda item: (item[0].ticket, item[1].number))
        for played in (False, True):
            requests = [t.wanted(lasts=played) for group, t in queue if group.played == played]
            if requests:
                self.engine.submit(requests, self._sampling_of(played=played))
            # Requests that the engine refuses stay queued: the next poll raises the error again.
            self._waiting = [item for item in self._waiting if item[0].played != played]

    def _take_samples(self, samples: Sequence[tuple[int, Sample]]) -> None:
        rows = []
        for key, sample in samples:
            group, trajectory = self._running[key]
            # Replaced as a whole, because the learner's thread reads it.
            turns = (TrainingCompletion.local(sample.tokens),)
            newest = TrainingGroup(tuple(trajectory.ids), turns, (0.0,), local=True)
            self._newest = (*self._newest, newest)[-MOST_COMPLETIONS:]
            place = group.at(trajectory, trajectory.turn)
            rows.append((place, UnfinishedTurn(sample.tokens, sample.finish)))
            trajectory.add(sample)
            self._end_turn(group, trajectory)
        self.unfinished.write(rows)

    def _end_turn(self, group: RunningGroup, trajectory: OpenTrajectory) -> None:
        if group.played:
            self._turns.ask([trajectory])
        else:
            trajectory.end(trajectory.so_far)
            self._close(group, trajectory)

    def _take_observations(self) -> None:
        rows = []
        for trajectory in self._turns.answered():
            group, _ = self._running[trajectory.key]
            if trajectory.over:
                self.engine.abort([trajectory.key])
                self._close(group, trajectory)
            else:
                last = trajectory.so_far.turns[-1]
                turn = UnfinishedTurn(last.sample.tokens, last.sample.finish, last.observation)
                rows.append((group.at(trajectory, trajectory.turn - 1), turn))
                self._waiting.append((group, trajectory))
        self.unfinished.write(rows)

    def _close(self, group: RunningGroup, trajectory: OpenTrajectory) -> None:
        del self._running[trajectory.key]
        if group.complete:
            self._complete.append(group)
