"""LoRA adapters (arXiv:2106.09685).

A linear layer's weight is ``W + alpha / rank * B A``. ``W`` is frozen, ``A`` and ``B`` are float32
whatever the dtype of ``W``. Other parts of a node get a model with the merged weights.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, cast

import peft
import torch
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from node.errors import ConfigError

SEED = 0  # of the initial ``A``, so nodes and runs start equal; ``B`` starts with zeros


class Adapter:
    """Low-rank updates of a model, added to it in place.

    The model's own weights are frozen. ``targets`` are suffixes of the names of the linear layers
    to adapt; if empty, all but the head. ``folder`` is a saved adapter to continue; if None, the
    model starts unchanged. A checkpoint must match ``settings``. Raises ConfigError: there are no
    such layers, or they cannot have an update.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        rank: int,
        alpha: int,
        targets: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        self._model = model
        self.settings = {"lora_rank": rank, "lora_alpha": alpha, "lora_targets": list(targets)}
        try:
            if folder is None:
                self._peft = _begin(model, rank, alpha, targets)
            else:
                self._peft = peft.PeftModel.from_pretrained(
                    model, folder, is_trainable=True, trust_remote_code=False
                )
        except ValueError as error:
            raise _refused(targets, str(error).splitlines()[0]) from error
        embeddings = {id(p) for p in model.get_input_embeddings().parameters()}
        for name, module in model.named_modules():
            if isinstance(module, BaseTunerLayer):
                if not isinstance(module, Linear):
                    raise _refused(targets, f"{name} is not a linear layer")
                if id(module.get_base_layer().weight) in embeddings:
                    raise _refused(targets, f"{name} shares its weight with the embeddings")

    @property
    def merged_bytes(self) -> int:
        """Memory of the merged weights."""
        return sum(layer.get_base_layer().weight.nbytes for layer in self._layers().values())

    def merged(self, into: PreTrainedModel | None = None) -> PreTrainedModel:
        """Return the model without adapters, weights merged; unchanged weights are shared.

        ``into`` is what this returned before; its weights are replaced in place.
        """
        if into is not None:
            for name, layer in self._layers().items():
                cast(Any, into.get_submodule(name)).weight.data.copy_(_sum(layer))
            return into
        originals: tuple[Any, ...] = (self._model.config, *self._model.parameters())
        memo: dict[int, Any] = {id(x): x for x in chain(originals, self._model.buffers())}
        for layer in self._layers().values():
            base = layer.get_base_layer()
            memo[id(base.weight)] = Parameter(_sum(layer), requires_grad=False)
            memo[id(layer)] = copy.deepcopy(base, memo)
        return copy.deepcopy(self._model, memo)

    def disabled(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes without the adapter."""
        context: AbstractContextManager[None] = self._peft.disable_adapter()
        return context

    def _layers(self) -> dict[str, Any]:
        return {name: x for name, x in self._model.named_modules() if isinstance(x, Linear)}

    def save(self, folder: Path) -> None:
        self._peft.save_pretrained(str(folder), save_embedding_layers=False)


@torch.no_grad()
def _sum(layer: Linear) -> Tensor:
    weight: Any = layer.get_base_layer().weight
    (name,) = layer.active_adapters
    total: Tensor = (weight + layer.get_delta_weight(name)).to(weight.dtype)
    return total


def _begin(model: PreTrainedModel, rank: int, alpha: int, targets: Sequence[str]) -> Any:
    names = list(targets) or "all-linear"
    settings = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=names, task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return peft.get_peft_model(model, settings)


def _refused(targets: Sequence[str], reason: str) -> ConfigError:
    remedy = "Name linear layers of the decoder, such as 'q_proj' and 'v_proj'"
    remedy += ", or leave it empty for all of them." if targets else "."
    return ConfigError("policy.lora_targets", list(targets), f"{reason.rstrip('.')}. {remedy}")
