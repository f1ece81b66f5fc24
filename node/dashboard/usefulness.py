"""What an author's groups are worth to this node: their part of what its held-out reward gained.

Between two evaluations the policy learned from groups of its own and of others. The change of the
held-out reward is divided among all of them: an own group that teaches counts 1, an external one
what the learner found it to be of use (:func:`node.learner.off_policy.usefulness`), from 0 to 1.
An author's gain is the sum of its parts over the run, so that the gains of all, the node's own
included, make what the held-out reward rose by. Nothing in it is an author's word.

Evaluations differ by chance as well. If each has an error of variance ``v``, that of a gain is
``v * sum_j (s[j-1] - s[j])**2`` for shares ``s`` of the stretches before and behind evaluation
``j``; ``v`` is half the variance of the changes, progress included, which is more than it can be.
The interval is of 95 %. It says how far chance may have moved the sum, not what would have been
without the author.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST = 4
"""Changes of the held-out reward, below which nothing is said."""
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Usefulness:
    """A gain of held-out reward, and the interval that it lies in."""

    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What each round learned from.

    Attributes:
        heldout: reward by round, of the policy before it learned in that round; NaN in rounds that
            did not evaluate.
        own: own groups by round that teach.
        places, authors, values: round, author and usefulness of each author's groups in a round,
            the first two as numbers from 0 up.
    """

    heldout: NDArray[np.float64]
    own: NDArray[np.float64]
    places: NDArray[np.intp]
    authors: NDArray[np.intp]
    values: NDArray[np.float64]


def usefulness(learned: Learned, asked: Sequence[int]) -> list[Usefulness] | None:
    """Of each author that is asked for; None where too little was evaluated."""
    looks = np.flatnonzero(~np.isnan(learned.heldout))
    if len(looks) <= LEAST:
        return None
    changes = np.diff(learned.heldout[looks])
    count = len(changes)
    # of each round the change that came of it; rounds before the first and behind the last: none
    change = np.searchsorted(looks, np.arange(len(learned.heldout)), "right") - 1
    inside = change[learned.places]
    within = (inside >= 0) & (inside < count)
    values, inside, authors = learned.values[within], inside[within], learned.authors[within]
    own = (change >= 0) & (change < count)
    total = np.bincount(change[own], np.nan_to_num(learned.own[own]), minlength=count)
    total += np.bincount(inside, values, minlength=count)
    error = float(np.var(changes, ddof=1)) / 2.0

    def of(author: int) -> Usefulness:
        theirs = authors == author
        given = np.bincount(inside[theirs], values[theirs], minlength=count)
        share = np.divide(given, total, out=np.zeros(count), where=total > 0)
        gain = float(share @ changes)
        steps = np.diff(share, prepend=0.0, append=0.0)
        spread = NORMAL_95 * float(np.sqrt(error * (steps @ steps)))
        return Usefulness(gain, gain - spread, gain + spread)

    return [of(author) for author in asked]
