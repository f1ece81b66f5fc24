"""One pass over an update's groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from node.learner.group_gradients import GroupGradients
from node.learner.update_stats import Tally


@dataclass(slots=True)
class Pass:
    """What one pass over an update's groups has gathered.

    ``frozen`` holds by number each completion's proximal log-probs and the entropies beside them,
    ``[T, 2]``, from the first pass on; nothing where there is no second. Gradients are taken
    ``factor`` times, and listened to by ``apart``.
    """

    frozen: dict[int, Tensor]
    factor: float = 1.0
    apart: GroupGradients | None = None
    losses: list[Tensor] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
