"""Of others, what went better than their mean."""

from __future__ import annotations

from node.learner.corrections.tapered import Tapered


class Better(Tapered):
    """Learns external answers that are better than their group's mean, weighed as by ``tapered``.

    Worse ones are not read. In experiments they are most of what comes from outside, and nothing
    is gained from them: that an answer is wrong says little of which of its tokens was, the less
    the longer it is, and a node has wrong answers of its own.
    """

    def reads(self, advantage: float) -> bool:
        """Better ones."""
        return advantage > 0
