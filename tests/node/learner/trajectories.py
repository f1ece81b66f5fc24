"""Groups of trajectories: turns of a policy, with what they were answered between them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from node.learner.batches import TrainingCompletion, TrainingGroup

PROMPT = (1, 2, 3)


def trajectory(
    seed: int, turns: int, *, known: bool = True, answered: bool = False
) -> TrainingCompletion:
    """So many turns of one to four tokens; ``answered``: something is read behind the last."""
    draw = random.Random(seed)
    ids: list[int] = []
    trained: list[bool] = []
    for turn in range(turns):
        own = draw.randint(1, 4)
        read = draw.randint(1, 3) if turn < turns - 1 or answered else 0
        ids += [draw.randrange(95) for _ in range(own + read)]
        trained += [True] * own + [False] * read
    mu = tuple(draw.uniform(-4.0, -0.1) for _ in ids) if known else None
    return TrainingCompletion(tuple(ids), tuple(trained), mu)


def played(
    turns: Sequence[int], rewards: Sequence[float], *, own: bool = True, seed: int = 0
) -> TrainingGroup:
    """A trajectory for each number of turns."""
    done = tuple(trajectory(100 * seed + n, count) for n, count in enumerate(turns))
    return TrainingGroup(PROMPT, done, tuple(rewards), own)
