"""A completion as one text for people: of a trajectory, every turn in lines of its own."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.rollout import Segment, Writer

ANSWERED = "» "
"""Before what an environment said."""


def transcript(segments: Iterable[Segment]) -> str:
    """The policy's words; between its turns, marked, what it was answered."""
    return "\n".join(
        segment.text if segment.writer is Writer.POLICY else f"{ANSWERED}{segment.text}"
        for segment in segments
    )
