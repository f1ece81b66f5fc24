"""How far a trajectory may go."""

from __future__ import annotations

from dataclasses import dataclass

from node.config.sections import EngineSection
from node.playing.played import Played


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
