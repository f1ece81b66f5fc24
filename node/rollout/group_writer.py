"""Groups on their way from their questions to whole completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from node.engines.engine import RolloutEngine, Sample, Sampling
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.engine_gap import MOST_COMPLETIONS
from node.playing.limits import TurnLimits
from node.playing.open_trajectory import OpenTrajectory
from node.playing.turns import Turns
from node.policy.policy import Policy
from node.rollout.running_group import RunningGroup
from node.rollout.unfinished_groups import Place, UnfinishedGroups, UnfinishedTurn
from node.tasks.scorer import Scorer


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
