"""Completions as generated: answers and trajectories, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from node.config.sections import EngineSection
from node.engines.engine import Sample, SamplingRequest
from node.learner.batches import TrainingCompletion
from node.tasks.scorer import Move
from protocol.rollout import Completion, Finish, Segment, Tokens, Writer
from swarm.groups import TaskRef
from swarm.verification import VerifierError


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy, and the observation that it reads next, if any."""

    sample: Sample
    observation: str | None = None
    observed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A completion of one or more turns; the last one has no observation.

    ``finish`` is ``LENGTH`` if the last turn was truncated or the environment did not end.
    ``reward`` is the environment's; None if there is none or it is ``lost``.
    """

    turns: tuple[Turn, ...]
    finish: Finish
    reward: float | None = None
    lost: VerifierError | None = None

    @classmethod
    def once(cls, sample: Sample) -> Trajectory:
        return cls((Turn(sample),), sample.finish)

    @property
    def text(self) -> str:
        return "".join(turn.sample.text for turn in self.turns)

    @property
    def tokens(self) -> Tokens:
        parts = [turn.sample.tokens for turn in self.turns]
        return Tokens(
            tuple(value for part in parts for value in part.ids),
            tuple(value for part in parts for value in part.logprobs),
            tuple(value for part in parts for value in part.versions),
        )

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments as shared with peers."""
        segments = []
        for turn in self.turns:
            segments.append(Segment(Writer.POLICY, turn.sample.text, turn.sample.tokens))
            if turn.observation is not None:
                segments.append(Segment(Writer.ENVIRONMENT, turn.observation))
        return tuple(segments)

    def completion(self, reward: float) -> Completion:
        """Return it as shared with peers."""
        return Completion(self.segments, reward, self.finish)

    def training(self) -> TrainingCompletion:
        """Return the learner's input; observations between turns are not trained on."""
        ids: list[int] = []
        trained: list[bool] = []
        behaviour: list[float] = []
        versions: list[int] = []
        for turn in self.turns:
            tokens, length = turn.sample.tokens, len(turn.observed)
            ids += [*tokens.ids, *turn.observed]
            trained += [True] * len(tokens.ids) + [False] * length
            behaviour += [*tokens.logprobs, *[0.0] * length]
            versions += [*tokens.versions, *tokens.versions[-1:] * length]
        return TrainingCompletion(tuple(ids), tuple(trained), tuple(behaviour), tuple(versions))


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Caps of a trajectory; tokens include EOS, but not observations."""

    turns: int = 8
    turn_tokens: int = 8
    tokens: int = 64

    @classmethod
    def of(cls, engine: EngineSection) -> TurnLimits:
        """Derive the limits from a configuration."""
        turn_tokens = engine.max_turn_tokens or max(1, engine.max_new_tokens // engine.max_turns)
        return cls(engine.max_turns, turn_tokens, engine.max_new_tokens)

    def last(self, turns: int, generated: int) -> bool:
        """Return whether no turn may follow so many turns of ``generated`` tokens."""
        return turns >= self.turns or generated + self.turn_tokens > self.tokens


_keys = count()


@dataclass(slots=True)
class OpenTrajectory:
    """An unfinished completion of one task."""

    task: TaskRef
    ids: list[int]  # all tokens that the policy reads next; never tokenized again
    number: int = 0  # in its group
    key: int = field(default_factory=lambda: next(_keys))  # unique in this process
    played: Trajectory | None = None
    begun: Tokens = field(default_factory=Tokens)  # tokens of the turn in progress
    over: bool = False

    def wanted(self, *, stream: int = 0, lasts: bool) -> SamplingRequest:
        """Return the engine request for its next turn, or for the rest of one."""
        return SamplingRequest(self.key, tuple(self.ids), self.begun, stream, lasts)

    def add(self, sample: Sample) -> None:
        earlier = self.played.turns if self.played else ()
        self.played = Trajectory((*earlier, Turn(sample)), sample.finish)
        self.ids += sample.tokens.ids
        self.begun = Tokens()

    def read(self, observation: str, observed: Sequence[int]) -> None:
        """Append the response to its last turn, as text and as token ids."""
        self.ids += observed
        *earlier, last = self.so_far.turns
        last = replace(last, observation=observation, observed=tuple(observed))
        self.played = replace(self.so_far, turns=(*earlier, last))

    def end(self, played: Trajectory) -> None:
        """Mark it as over, with ``played`` as its result."""
        self.played, self.over = played, True

    @property
    def turn(self) -> int:
        """Number of the turn in progress, from 0."""
        return len(self.played.turns) if self.played else 0

    @property
    def so_far(self) -> Trajectory:
        """Its turns; at least one must exist."""
        assert self.played is not None
        return self.played

    def move(self, limits: TurnLimits) -> Move:
        """Return its last turn as a request to an environment."""
        trajectory = self.so_far
        actions = tuple(turn.sample.text for turn in trajectory.turns)
        generated = len(trajectory.tokens.ids)
        final = trajectory.finish is Finish.LENGTH or limits.last(len(actions), generated)
        return Move(self.key, self.task, actions, final)
