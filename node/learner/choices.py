"""Choices of other sections of the configuration that a learner goes by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class Choices(TypedDict, total=False):
    """What a learner is told beside its own section of the configuration.

    Attributes:
        temperature: of the distribution that completions are sampled from; divides the logits.
        correction: name of a rule in ``corrections/``, for what this policy did not write.
        correction_options: its settings.
        floor: external rollouts that are :func:`node.learner.external_filters.unlikely` are not
            imitated.
        decoupled: own rollouts may be of earlier versions, and are weighed by
            :func:`~node.learner.stale_tokens.decoupled_weights`, whatever the correction.
    """

    temperature: float
    correction: str
    correction_options: Mapping[str, Any]
    decoupled: bool
    floor: bool
