"""A completion as it was written: one answer, or a trajectory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from node.engines.engine import Sample
from node.learner.batches import TrainingCompletion
from protocol.rollout import Finish, Segment, Tokens, Writer
from swarm.verification import Answer, JudgeRefused, Turns


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy wrote at a time, and what it was answered.

    Attributes:
        sample: the policy's own tokens, or as if they were.
        observation: what it read next; None where nothing followed.
        observed: the same as token ids.
        own: whether the policy wrote it; another's turn, in place of its own, is not trained on.
    """

    sample: Sample
    observation: str | None = None
    observed: tuple[int, ...] = ()
    own: bool = True


@dataclass(frozen=True, slots=True)
class Played:
    """A completion of one turn or more.

    Attributes:
        turns: the last one is answered by nobody.
        finish: ``LENGTH`` where it was cut: its last turn at the cap, or all of it before the
            environment had ended.
        reward: what the environment made of it; None where there is none, or it is lost.
        lost: why it has no reward, where its environment was lost.
    """

    turns: tuple[Turn, ...]
    finish: Finish
    reward: float | None = None
    lost: JudgeRefused | None = None

    @classmethod
    def once(cls, sample: Sample) -> Played:
        """An answer in one turn."""
        return cls((Turn(sample),), sample.finish)

    @property
    def text(self) -> str:
        """The policy's own words."""
        return "".join(turn.sample.text for turn in self.turns)

    @property
    def tokens(self) -> Tokens:
        """The policy's own tokens."""
        parts = [turn.sample.tokens for turn in self.turns]
        return Tokens(
            tuple(each for part in parts for each in part.ids),
            tuple(each for part in parts for each in part.logprobs),
            tuple(each for part in parts for each in part.versions),
        )

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As it is shared."""
        told = []
        for turn in self.turns:
            told.append(Segment(Writer.POLICY, turn.sample.text, turn.sample.tokens))
            if turn.observation is not None:
                told.append(Segment(Writer.ENVIRONMENT, turn.observation))
        return tuple(told)

    def answer(self, *, played: bool) -> Answer:
        """As a judge is given it; ``played`` in an environment or not."""
        if not played:
            return self.text
        return Turns(tuple(each.text for each in self.segments), self.finish is Finish.LENGTH)

    def training(self) -> TrainingCompletion:
        """As the learner reads it: what others wrote stands between own turns, untrained."""
        ids: list[int] = []
        trained: list[bool] = []
        behaviour: list[float] = []
        versions: list[int] = []
        for turn in self.turns:
            own, read = turn.sample.tokens, len(turn.observed)
            ids += [*own.ids, *turn.observed]
            trained += [turn.own] * len(own.ids) + [False] * read
            behaviour += [*own.logprobs, *[0.0] * read]
            versions += [*own.versions, *own.versions[-1:] * read]
        return TrainingCompletion(tuple(ids), tuple(trained), tuple(behaviour), tuple(versions))

    def answered(self, observation: str, observed: tuple[int, ...]) -> Played:
        """With what its last turn was answered."""
        last = replace(self.turns[-1], observation=observation, observed=observed)
        return replace(self, turns=(*self.turns[:-1], last))

    def with_turn(self, sample: Sample) -> Played:
        """With one more turn."""
        return replace(self, turns=(*self.turns, Turn(sample)), finish=sample.finish)

    def with_turn_of_another(self, sample: Sample) -> Played:
        """With another's turn in the place of the last one."""
        return replace(
            self, turns=(*self.turns[:-1], Turn(sample, own=False)), finish=sample.finish
        )
