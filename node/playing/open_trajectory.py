"""A completion that is being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from node.engines.engine import Sample, Trajectory
from node.playing.limits import TurnLimits
from node.playing.played import Played
from node.tasks.scorer import Move
from protocol.rollout import Finish, Tokens
from swarm.groups import TaskRef

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
