"""How far the policy that learns might have written what an external group would have it imitate.

Right answers can hold text that is there for the reader to pick up (arXiv 2511.09780), and nothing
that its author says of it can be trusted. What can be is this policy's own surprise at it. The
tokens that it samples have ``-log p = H`` at the mean, its entropy there, and seldom much more
(the typical set that arXiv 2202.00666 samples from). A better author's answers surprise it in a
token here and there; what was planted surprises it throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from node.learner.batches import Row

SURPRISE = 2.0
"""Nats beyond the entropy up to which a token is one that this policy might have written."""
FALL = 2.0
"""Power of its probability by which a token beyond that counts less."""
NO_USE, FULL_USE = 0.75, 0.9
"""Means over a group's right tokens, up to which it is of no use and from which it is of full."""


def plausibility(prox: Tensor, entropies: Tensor) -> Tensor:
    """``min(1, exp(FALL (log p + H + SURPRISE)))`` of each token; as large as both, no gradient.

    It falls faster than the token's probability, so that an update raises what is improbable by
    next to nothing.

    Args:
        prox: log-probs under this policy, nats.
        entropies: ``H``, of this policy where it would write the token, nats.
    """
    return (FALL * (prox + entropies + SURPRISE).clamp(max=0.0)).exp().detach()


def usefulness(rows: Sequence[Row], sums: Mapping[int, tuple[float, float]]) -> dict[int, float]:
    """Of external groups by their number, in [0, 1]: how plausible that is in them which is right.

    Linear between ``NO_USE`` and ``FULL_USE``. A group in which nothing right is left to read is of
    no use.

    Args:
        sums: by completion, over tokens that are to be imitated: plausibilities, and how many.
    """
    useful = {}
    for row in rows:
        if row.own:
            continue
        numbers = range(row.first, row.first + len(row.completions))
        found = [sums[number] for number in numbers if number in sums]
        tokens = sum(count for _, count in found)
        mean = sum(total for total, _ in found) / tokens if tokens else 0.0
        useful[row.group] = min(1.0, max(0.0, (mean - NO_USE) / (FULL_USE - NO_USE)))
    return useful
