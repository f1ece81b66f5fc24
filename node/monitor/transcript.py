"""A completion as one text for people: of a trajectory, every turn in lines of its own."""

from __future__ import annotations

from protocol.rollout import Completion, Writer

ANSWERED = "» "
"""Before what an environment said."""


def transcript(completion: Completion) -> str:
    """The policy's words; between its turns, marked, what it was answered."""
    return "\n".join(
        segment.text if segment.writer is Writer.POLICY else f"{ANSWERED}{segment.text}"
        for segment in completion.segments
    )
