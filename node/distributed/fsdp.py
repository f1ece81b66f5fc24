"""A model of which every rank holds some rows of each weight (FSDP2, arXiv:2304.11277)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_layers import GradientCheckpointingLayer

from node.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Outline:
    """What a rank has to know of rank 0's policy; the weights come by themselves.

    ``device`` is its kind, the other fields are those of :class:`node.policy.policy.Policy`.
    """

    config: PreTrainedConfig
    dtype: torch.dtype
    device: str
    pad_id: int
    context_length: int
    version: int

    @classmethod
    def of(cls, policy: Policy) -> Outline:
        """Of a policy without an adapter."""
        model = policy.model
        return cls(
            copy.deepcopy(model.config),
            model.dtype,
            policy.device.type,
            policy.pad_id,
            policy.context_length,
            policy.version,
        )


@dataclass(slots=True)
class Replica:
    """What a learner needs of a policy, with sharded weights."""

    model: PreTrainedModel
    device: torch.device
    pad_id: int
    context_length: int
    version: int


def sharded(outline: Outline, mesh: DeviceMesh) -> PreTrainedModel:
    """The model with weights of no meaning, sharded layer by layer.

    A layer's weights are gathered for its forward and its backward pass, and its gradient is
    summed over the ranks, in float32, as losses are divided by counts of the whole update already.
    """
    with no_init_weights():
        build: Any = AutoModelForCausalLM.from_config
        model: PreTrainedModel = build(outline.config, dtype=outline.dtype)
    model.tie_weights()
    model.train(False)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for module in (*_layers(model), model):
        shard: FSDPModule = fully_shard(module, mesh=mesh, mp_policy=policy)
        shard.set_gradient_divide_factor(1.0)
        # The other way to sum scales within the operation, which NCCL alone can do.
        shard.set_force_sum_reduction_for_comms(True)
    return model


def _layers(model: PreTrainedModel) -> Iterator[torch.nn.Module]:
    return (m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
