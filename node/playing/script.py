"""Another's trajectory, which own ones are held to."""

from __future__ import annotations

from dataclasses import dataclass

from node.playing.played import Played


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
