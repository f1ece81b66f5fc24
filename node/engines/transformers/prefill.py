"""Prompts on their way into a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from node.engines.transformers.kv_cache import growing_cache
from node.engines.transformers.length_buckets import alike
from node.policy.policy import Policy


class ReadPrompts(NamedTuple):
    """Prompts that were read together, left-padded.

    Attributes:
        which: their indices.
        cache: of ``P`` rows.
        logits: ``[P, V]``, of the tokens after them.
        lengths: int64 ``[P]``.
    """

    which: list[int]
    cache: DynamicCache
    logits: Tensor
    lengths: Tensor


def read(policy: Policy, prompts: Sequence[Sequence[int]], worth: int) -> list[ReadPrompts]:
    """Read each prompt once, those of similar length together.

    Args:
        prompts: token ids, none of them empty.
        worth: tokens of padding that are worth another forward pass.
    """
    return [
        _together(policy, chosen, [prompts[n] for n in chosen])
        for chosen in alike([len(prompt) for prompt in prompts], worth)
    ]


def logits_after(
    policy: Policy, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: DynamicCache
) -> Tensor:
    """Logits ``[B, V]`` after the tokens ``[B, t]``, which the cache takes in."""
    output: Any = policy.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cast(Tensor, output.logits[:, -1])


def _together(policy: Policy, which: list[int], prompts: Sequence[Sequence[int]]) -> ReadPrompts:
    fill, longest, device = policy.pad_id, max(map(len, prompts)), policy.device
    padded = [[fill] * (longest - len(each)) + list(each) for each in prompts]
    lengths = torch.tensor([len(each) for each in prompts], device=device)
    positions = torch.arange(longest, device=device) - (longest - lengths)[:, None]
    mask = (positions >= 0).long() if bool((positions < 0).any()) else None
    cache = growing_cache(policy.model.config)
    ids = torch.tensor(padded, device=device)
    logits = logits_after(policy, ids, mask, positions.clamp_(0), cache)
    return ReadPrompts(which, cache, logits, lengths)
