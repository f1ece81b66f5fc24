"""Which prompts leave room for an answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from node.errors import NodeError
from node.evaluation.evaluator import LONGER_CONTEXT
from node.policy.policy import Policy
from swarm.common.counters import Counters

log = logging.getLogger(__name__)

MANY_UNFIT = 8
"""Prompts in a row that cannot be answered: it is no longer one of them that is to blame."""


class PromptRoom:
    """Leaves out prompts that a policy cannot answer, and gives up where there is no other.

    Args:
        counters: ``own_prompts_too_long``, ``own_prompts_empty``.
    """

    def __init__(self, policy: Policy, counters: Counters) -> None:
        self._policy = policy
        self._counters = counters
        self._unfit: list[int] = []

    def fits(self, prompts: Sequence[Sequence[int]]) -> list[bool]:
        """For each of some prompts (token ids) whether it is one and leaves room for an answer.

        Raises:
            NodeError: none has for :data:`MANY_UNFIT` prompts in a row.
        """
        context = self._policy.context_length
        lengths = [len(ids) for ids in prompts]
        fits = [0 < length < context for length in lengths]
        if empty := lengths.count(0):
            self._counters.add("own_prompts_empty", empty)
            log.warning("%d of %d prompts have no token: they are left out", empty, len(prompts))
        if left_out := fits.count(False) - empty:
            self._counters.add("own_prompts_too_long", left_out)
            log.warning(
                "%d of %d prompts, of up to %d tokens, do not fit the policy's context of %d: they "
                "are left out. %s",
                left_out,
                len(prompts),
                max(lengths),
                context,
                LONGER_CONTEXT,
            )
        self._note(lengths, fits)
        return fits

    def _note(self, lengths: Sequence[int], fits: Sequence[bool]) -> None:
        for length, fit in zip(lengths, fits, strict=True):
            self._unfit = [] if fit else [*self._unfit, length]
        if len(self._unfit) >= MANY_UNFIT:
            raise NodeError(
                "no prompt leaves room for an answer",
                f"{len(self._unfit)} in a row have {min(self._unfit)} to {max(self._unfit)} "
                f"tokens, context {self._policy.context_length}",
                LONGER_CONTEXT,
            )
