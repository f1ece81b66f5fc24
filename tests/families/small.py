"""Small random models of every causal architecture that ``transformers`` knows."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

from node.policy.policy import Policy
from tests.families.sizes import OWN, SEEING, SIZES, VISION
from tests.support import policy_of

MOST_WEIGHTS = 6_000_000


class TooLargeError(Exception):
    """A family whose configuration does not become small."""


def small_config(family: str, **changes: Any) -> PreTrainedConfig:
    """A configuration with tiny widths and two layers of each kind that the family mixes.

    Args:
        family: its ``model_type``.
        changes: fields that are to be otherwise.
    """
    kind = CONFIG_MAPPING[family]
    if family in SEEING:
        text = small_config(SEEING[family]).to_dict()
        return kind(text_config=text, vision_config=dict(VISION))
    known = {field.name for field in dataclasses.fields(kind)}
    sizes: dict[str, Any] = {
        name: value
        for name, value in SIZES.items()
        if name in known and name not in kind.attribute_map
    }
    own = OWN.get(family, {})
    if "is_decoder" in known:
        sizes["is_decoder"] = True
    if "layer_types" in known and "num_hidden_layers" not in own:
        kinds = list(dict.fromkeys(kind().layer_types or ()))
        if len(kinds) > 1:
            sizes |= {"layer_types": kinds * 2, "num_hidden_layers": 2 * len(kinds)}
    return kind(**{**sizes, **own, **changes})


def small_policy(family: str, seed: int = 1) -> Policy:
    """A random policy of a family, in float32, that never stops by itself.

    Raises:
        TooLargeError: it has more than :data:`MOST_WEIGHTS`.
    """
    config = small_config(family)
    with torch.device("meta"):
        weights = AutoModelForCausalLM.from_config(config).num_parameters()
    if weights > MOST_WEIGHTS:
        raise TooLargeError(f"{family}: {weights} weights")
    return policy_of(config, family, seed)
