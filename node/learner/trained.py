"""What a learner needs of the policy that it trains."""

from __future__ import annotations

from typing import Protocol

import torch
from transformers import PreTrainedModel


class Trained(Protocol):
    """What a learner needs of a :class:`node.policy.policy.Policy`."""

    model: PreTrainedModel
    device: torch.device
    pad_id: int
    context_length: int
    version: int
