"""What a demonstration's nodes practise, and with which of the shipped models."""

from __future__ import annotations

from dataclasses import dataclass

from node.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Practice:
    """One shipped catalogue.

    Attributes:
        models: that were made for it; nodes take them in turn.
        max_new_tokens: longer than any right answer.
        turns: of a trajectory at most.
    """

    models: tuple[str, ...]
    max_new_tokens: int
    turns: int = 8


PRACTICES = {
    "tiny": Practice(("tiny", "tiny-wide"), 16),
    "games": Practice(("tiny-games",), 64),
}


def practice_of(catalogue: str) -> Practice:
    """How the catalogue of that name is demonstrated.

    Raises:
        ConfigError: no models come with it.
    """
    if catalogue not in PRACTICES:
        known = ", ".join(PRACTICES)
        raise ConfigError("--catalogue", catalogue, f"Models come with these: {known}.")
    return PRACTICES[catalogue]
