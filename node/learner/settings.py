"""How the policy is updated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from node.learner.optimizer import Kind


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """The numbers and rules of an update.

    Attributes:
        loss: a function of :mod:`node.learner.losses`.
        clip_low: the ratio's lower bound is ``1 - clip_low``.
        clip_high: its upper bound is ``1 + clip_high``.
        optimizer: ``kind`` of :class:`node.learner.optimizer.OptimizerConfig`.
        offload: likewise.
        lr: AdamW's learning rate once warm.
        betas: AdamW's decay of the two moments.
        weight_decay: decoupled, times the learning rate a step.
        epochs: optimizer steps an update, each on all of its groups.
        micro_batch_tokens: :func:`node.learner.batches.held_tokens` of one forward pass; lowered
            where memory runs out.
        gradient_checkpointing: see :class:`node.learner.gradient_checkpointing.Recomputing`.
        max_completion_tokens: what is longer is trained on up to here.
        max_grad_norm: the gradient's L2 norm is scaled down to this.
        warmup_steps: optimizer steps until the learning rate is reached, linearly.
        normalise_std: divide a group's advantages by its rewards' standard deviation.
        tis_cap: bound of a truncated importance weight.
        stale: of :class:`node.learner.losses.Stale`, for own tokens of earlier versions.
        stale_cap: likewise.
        prox: what own stale tokens take for the proximal policy: the one that the update begins
            with (``"start"``), or :func:`node.learner.losses.interpolated_prox` (``"versions"``).
    """

    loss: Literal["grpo", "dr_grpo", "gspo", "cispo"] = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    optimizer: Kind = "adamw"
    offload: bool = False
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    epochs: int = 1
    micro_batch_tokens: int = 8192
    gradient_checkpointing: bool = False
    max_completion_tokens: int = 4096
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    normalise_std: bool = True
    tis_cap: float = 2.0
    stale: Literal["mask_tokens", "mask_sequences", "clamp"] = "mask_tokens"
    stale_cap: float = 5.0
    prox: Literal["start", "versions"] = "start"
