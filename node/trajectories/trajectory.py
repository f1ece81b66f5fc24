"""A completion as it was written: one answer, or a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from node.config.sections import EngineSection
from node.engines.engine import Sample, Trajectory
from node.learner.batches import TrainingCompletion
from node.tasks.scorer import Move
from protocol.rollout import Finish, Segment, Tokens, Writer
from swarm.groups import TaskRef
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


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Caps of a trajectory in an environment.

    Attributes:
        turns: of the policy.
        turn_tokens: of a turn, its end-of-sequence token included.
        tokens: of all turns together; observations do not count.
    """

    turns: int = 8
    turn_tokens: int = 8
    tokens: int = 64

    @classmethod
    def of(cls, engine: EngineSection) -> TurnLimits:
        """What a configuration says."""
        share = engine.max_new_tokens // engine.max_turns
        turn_tokens = engine.max_turn_tokens or max(1, share)
        return cls(engine.max_turns, turn_tokens, engine.max_new_tokens)

    def last(self, played: Played) -> bool:
        """Whether no turn may follow what was written."""
        written = sum(len(turn.sample.tokens.ids) for turn in played.turns)
        return len(played.turns) >= self.turns or written + self.turn_tokens > self.tokens


_keys = count()


@dataclass(slots=True)
class OpenTrajectory:
    """A completion of one task, between its turns or in one.

    Attributes:
        task: what it is a completion of.
        ids: all that the policy reads next; token ids are never spelled again.
        key: names it to the engine and to environments, in this process for good.
        played: its turns so far.
        begun: what the turn has that is being written.
        over: nothing follows.
    """

    task: TaskRef
    ids: list[int]
    key: int = field(default_factory=lambda: next(_keys))
    played: Played | None = None
    begun: Tokens = field(default_factory=Tokens)
    over: bool = False

    def wanted(self, *, stream: int = 0, lasts: bool) -> Trajectory:
        """Its next turn, or the rest of one that has begun, as an engine is asked for it."""
        return Trajectory(self.key, tuple(self.ids), self.begun, stream, lasts)

    def add(self, sample: Sample) -> None:
        """Take in one more turn."""
        self.played = self.played.with_turn(sample) if self.played else Played.once(sample)
        self.ids += sample.tokens.ids
        self.begun = Tokens()

    def patch(self, sample: Sample) -> None:
        """Put another's turn in the place of the last one, as if the policy had written it."""
        played = self.so_far
        own = len(played.turns[-1].sample.tokens.ids)
        self.ids[len(self.ids) - own :] = sample.tokens.ids
        self.played = played.with_turn_of_another(sample)

    def read(self, observation: str, observed: Sequence[int]) -> None:
        """Take in what its last turn was answered, as text and as token ids."""
        self.ids += observed
        self.played = self.so_far.answered(observation, tuple(observed))

    def end(self, played: Played) -> None:
        """Nothing follows; it has become ``played``."""
        self.played, self.over = played, True

    @property
    def so_far(self) -> Played:
        """Its turns; there has to be one."""
        assert self.played is not None
        return self.played

    def move(self, limits: TurnLimits) -> Move:
        """Its last turn, as an environment is told of it."""
        played = self.so_far
        actions = tuple(turn.sample.text for turn in played.turns)
        final = played.finish is Finish.LENGTH or limits.last(played)
        return Move(self.key, self.task, actions, final)


@dataclass(frozen=True, slots=True)
class Script:
    """The semi-online rollouts of UI-S1 (arXiv 2509.11543), patched up to a limit.

    The policy writes every turn itself, behind its own history. Where it departs from the script,
    the script's turn takes the place of its own, which nobody learns from; once that was done so
    often, the policy goes its own way. What the environment makes of the whole is the reward.

    Attributes:
        actions: its turns.
        patches: most of them that take the place of own ones.
    """

    actions: tuple[str, ...]
    patches: int

    def instead(self, played: Played) -> str | None:
        """What takes the place of the last turn; None where that stands."""
        written = tuple(turn.sample.text for turn in played.turns)
        before, number = written[:-1], len(written) - 1
        if before != self.actions[:number] or number >= len(self.actions):
            return None
        patched = sum(not turn.own for turn in played.turns)
        action = self.actions[number]
        return None if written[-1] == action or patched >= self.patches else action
