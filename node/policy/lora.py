"""LoRA adapters (arXiv:2106.09685), and policies of checkpoints: load and export.

A linear layer's weight is ``W + alpha / rank * B A``. ``W`` is frozen, ``A`` and ``B`` are float32
whatever the dtype of ``W``. Other parts of a node get a model with the merged weights and do not
depend on adapters.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from node.config.config import Config
from node.config.learning import PolicySection
from node.errors import ConfigError, NodeError, UsageError
from node.policy.model_files import check_begun
from node.policy.policy import Policy
from node.storage.atomic_files import make_folder
from node.storage.checkpoint_list import best_of, list_checkpoints, no_checkpoint, of_step
from node.storage.checkpoints import Checkpoints, Loaded
from node.storage.run_folder import RunFolder

SEED = 0  # of the initial ``A``, so nodes and runs start equal; ``B`` starts with zeros


class Adapter:
    """Low-rank updates of a model, added to it in place.

    Args:
        model: its own weights are frozen from now on.
        targets: suffixes of the names of the linear layers to adapt; if empty, all but the head.
        folder: of a saved adapter to continue; if None, the model starts unchanged.

    Attributes:
        settings: configuration keys and values that a checkpoint must match.

    Raises:
        ConfigError: there are no such layers, or they cannot have an update.
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
        self.settings = {
            "lora_rank": rank,
            "lora_alpha": alpha,
            "lora_targets": list(targets),
        }
        try:
            if folder is None:
                self._peft = _begin(model, rank, alpha, targets)
            else:
                self._peft = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
        except ValueError as error:
            raise _refused(targets, str(error).splitlines()[0]) from error
        embeddings = {id(p) for p in model.get_input_embeddings().parameters()}
        for name, module in model.named_modules():
            if isinstance(module, BaseTunerLayer):
                if not isinstance(module, Linear):
                    raise _refused(targets, f"{name} is not a linear layer")
                if id(module.get_base_layer().weight) in embeddings:
                    raise _refused(targets, f"{name} shares its weight with the embeddings")

    def merged(self) -> PreTrainedModel:
        """Return the model without adapters, weights merged; unchanged weights are shared."""
        kept: tuple[Any, ...] = (self._model.config, *self._model.parameters())
        shared: dict[int, Any] = {id(x): x for x in chain(kept, self._model.buffers())}
        for layer in self._model.modules():
            if isinstance(layer, Linear):
                base = layer.get_base_layer()
                shared[id(base.weight)] = Parameter(_sum(layer), requires_grad=False)
                shared[id(layer)] = copy.deepcopy(base, shared)
        return copy.deepcopy(self._model, shared)

    def save(self, folder: Path) -> None:
        """Write it in the layout that peft, ``transformers`` and vLLM load."""
        self._peft.save_pretrained(str(folder), save_embedding_layers=False)


@torch.no_grad()
def _sum(layer: Linear) -> Tensor:
    weight: Any = layer.get_base_layer().weight
    (name,) = layer.active_adapters
    total: Tensor = (weight + layer.get_delta_weight(name)).to(weight.dtype)
    return total


def _begin(model: PreTrainedModel, rank: int, alpha: int, targets: Sequence[str]) -> Any:
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return peft.get_peft_model(model, settings)


def _refused(targets: Sequence[str], reason: str) -> ConfigError:
    return ConfigError(
        "policy.lora_targets",
        list(targets),
        f"{reason.rstrip('.')}. Name linear layers of the decoder, such as 'q_proj' and 'v_proj', "
        "or none for all of them.",
    )


log = logging.getLogger(__name__)


@contextmanager
def chosen(folder: RunFolder, *, step: int | None = None, best: bool = False) -> Iterator[Loaded]:
    """Yield the newest intact checkpoint, that of a step, or of best held-out reward.

    A node in that folder deletes no checkpoint meanwhile.

    Raises:
        NodeError: there is no checkpoint.
        UsageError: there is none of that step, or none was evaluated.
        CheckpointError: it is damaged.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    with checkpoints.reading():
        if step is not None:
            yield of_step(list_checkpoints(checkpoints), step).load()
        elif best:
            yield best_of(list_checkpoints(checkpoints), folder).load()
        elif loaded := checkpoints.load_latest():
            yield loaded
        else:
            raise no_checkpoint(checkpoints.folder)


def saved_policy(
    config: PolicySection, loaded: Loaded, tell: Callable[[str], None] = log.info
) -> Policy:
    """Load a checkpoint's policy; an adapter goes into the run's initial model.

    Raises:
        PolicyError: it cannot be loaded.
        ConfigError: the run started with another model, weight type or adapter.
    """
    check_begun(config, loaded.state)
    if config.lora_rank:
        return Policy.load(config, loaded.path, tell)
    policy = Policy.load(config.model_copy(update={"model": str(loaded.path)}))
    policy.name = config.model
    return policy


def checkpoint_policy(
    config: PolicySection, loaded: Loaded, tell: Callable[[str], None] = log.info
) -> Policy:
    """Load a checkpoint's own model, or its adapter into the configured model.

    Raises:
        PolicyError: it cannot be loaded.
        ConfigError: an adapter was trained with other settings.
    """
    if "lora_rank" in loaded.state:
        return saved_policy(config, loaded, tell)
    return Policy.load(
        PolicySection(
            model=str(loaded.path),
            dtype=config.dtype,
            device=config.device,
            chat_options=config.chat_options,
        )
    )


def export(
    config: Config,
    loaded: Loaded,
    out: Path,
    *,
    adapter: bool = False,
    tell: Callable[[str], None] = log.info,
) -> None:
    """Write a checkpoint's model (or only its adapter) and tokenizer to ``out``.

    Raises:
        NodeError: ``out`` exists and is not an empty folder, or cannot be made.
        UsageError: there is no adapter.
        PolicyError: the checkpoint cannot be loaded.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError("there is something already at", out, "Name a new folder with --out.")
    make_folder(out, "--out")
    policy = checkpoint_policy(config.policy.model_copy(update={"device": "cpu"}), loaded, tell)
    if adapter and policy.adapter is None:
        raise UsageError("--adapter", loaded.path, "The run has none: leave the option out.")
    (policy.save_adapter if adapter else policy.save)(out)
