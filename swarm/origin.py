"""What all groups of one frame have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """What all groups of one :class:`protocol.rollout.Batch` have in common.

    Attributes:
        policy_step: the policy version that wrote the group.
        model: name of the model, for people.
        encoding: 32-byte encoding digest.
        temperature: of the sampling distribution.
        max_new_tokens: length cap in force.
    """

    policy_step: int
    model: str
    encoding: bytes
    temperature: float
    max_new_tokens: int
