"""Which turns of trajectories are trained on, by how undecided the policy was in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from node.learner.batches import TrainingCompletion
from node.learner.turns import turns_of

ROUNDING = 1e-9


def undecided(
    completions: Sequence[TrainingCompletion], share: float
) -> Sequence[TrainingCompletion]:
    """A group's completions with those turns masked in which their writer was surest.

    Kept is the ``share`` of the turns, rounded up, with the highest mean entropy of their tokens,
    of equal ones the earlier (DART, arXiv:2509.23866, which keeps 0.8). All that is known of a
    token is ``mu``, its log-prob where it was sampled: the mean of ``-mu`` over a turn stands for
    its entropy, which it is at the mean. A turn of which ``mu`` is not known is kept, and so a
    claim of another node's leaves a turn out and never brings one in. Answers of one turn are read
    as ever.

    A masked turn is context for what follows. What a group's sum is divided by stays what it would
    be with all turns (:class:`node.learner.loss.Counts`).
    """
    turns = [turns_of(completion.trained) for completion in completions]
    if share == 1.0 or max(map(len, turns)) < 2:
        return completions
    known = [
        (-fmean(completion.behaviour[place]), number, place)
        for number, (completion, places) in enumerate(zip(completions, turns, strict=True))
        if completion.behaviour is not None
        for place in places
    ]
    known.sort(key=lambda turn: -turn[0])
    told = [list(completion.trained) for completion in completions]
    for _, number, place in known[math.ceil(share * len(known) - ROUNDING) :]:
        told[number][place] = [False] * (place.stop - place.start)
    return [replace(c, trained=tuple(line)) for c, line in zip(completions, told, strict=True)]
