"""A trajectory played once more, by whoever was told of it."""

from __future__ import annotations

from collections.abc import Sequence

from node.environments.episode import Episode

BEFORE, SHOWN = 20, 60
"""Characters that are told of texts that differ, from so many before they part."""


class NotReplayed(Exception):  # noqa: N818 - a finding
    """The environment answers otherwise than it is said to have; the message tells where."""


async def replayed(episode: Episode, turns: Sequence[str], *, cut: bool) -> float:
    """The reward of a trajectory, if its observations are what the environment gives.

    Args:
        episode: fresh.
        turns: what the policy wrote and what it was answered, by turns, the policy first and last.
        cut: whether it may end before the environment does.

    Raises:
        NotReplayed: an observation is another, turns follow the end, or it is not reached.
        EpisodeError: the environment breaks its word.
    """
    await episode.begin()
    for number, action in enumerate(turns[::2], 1):
        if episode.over:
            raise NotReplayed(f"turn {number} follows the end")
        observation = await episode.step(action)
        told = turns[2 * number - 1 : 2 * number]
        if told and not episode.over and observation != told[0]:
            raise NotReplayed(f"turn {number} is answered {differing(observation, told[0])}")
    if not episode.over and not cut:
        raise NotReplayed(f"it does not end with turn {len(turns[::2])}")
    return await episode.reward()


def differing(found: str, told: str) -> str:
    """Where two texts part, in words."""
    apart = (n for n, pair in enumerate(zip(found, told, strict=False)) if pair[0] != pair[1])
    begin = max(0, next(apart, min(len(found), len(told))) - BEFORE)
    parts = (each[begin : begin + SHOWN] for each in (found, told))
    return ", not ".join("…" * (begin > 0) + repr(part) for part in parts)
