"""A trajectory played once more, by whoever was told of it."""

from __future__ import annotations

from collections.abc import Sequence

from node.environments.episode import Episode


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
            raise NotReplayed(f"turn {number} is answered {observation!r:.60}, not {told[0]!r:.60}")
    if not episode.over and not cut:
        raise NotReplayed(f"it does not end with turn {len(turns[::2])}")
    return await episode.reward()
