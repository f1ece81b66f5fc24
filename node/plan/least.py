"""What a configuration takes of memory at the very least, and what would make it fit.

Nothing heavy is imported here: it is said before anything of the model is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from node.config.config import Config, build
from node.errors import ConfigError
from node.plan.amounts import FLOAT, MOMENTS, WIDTHS, gigabytes
from node.plan.machine import main_memory
from node.plan.weight_count import least_weights
from node.policy.device import gpu_memory
from node.policy.model_files import PolicyError
from node.policy.model_source import config_folder

log = logging.getLogger(__name__)

HELP: tuple[Mapping[str, Any], ...] = (
    {"policy.dtype": "bfloat16"},
    {"learner.optimizer": "adamw8bit"},
    {"policy.dtype": "bfloat16", "learner.optimizer": "adamw8bit"},
    {"learner.offload": True},
    {"policy.dtype": "bfloat16", "learner.offload": True},
    {"policy.lora_rank": 16},
    {"policy.dtype": "bfloat16", "policy.lora_rank": 16},
    {"policy.dtype": "bfloat16", "policy.lora_rank": 16, "schedule.mode": "alternate"},
)
"""Keys that a plan changes too, the least drastic first."""


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes without which no update can be made, and those that there are.

    Only weights, one gradient and the optimizer's numbers count: no activations, no cache, no
    libraries.

    Attributes:
        weights: of the model, in numbers; 0 where they could not be counted.
        memory, device: bytes of main memory and of the GPU.
        there: of main memory with swap, and of the GPU, 0 where there is none.
        free: of main memory, without swap.
    """

    weights: int
    memory: float
    device: float
    there: tuple[int, int]
    free: int

    @property
    def fits(self) -> bool:
        """Whether all that there is would do."""
        return self.memory <= self.there[0] and self.device <= self.there[1]

    @property
    def tight(self) -> bool:
        """Whether it would do only if other programs gave memory back."""
        return self.memory > self.free

    def words(self) -> str:
        """What is needed of what there is, of the place that is short."""
        if self.device > self.there[1]:
            needed, there, place = self.device, self.there[1], "GPU memory"
        else:
            needed, there, place = self.memory, self.there[0], "main memory"
        return (
            f"its {self.weights / 1e9:.2f} billion weights take at least {gigabytes(needed)} of "
            f"{place} with these settings, and this machine has {gigabytes(there)}"
        )


def least(config: Config, weights: int) -> Least:
    """What a model with so many weights takes here."""
    gpu = gpu_memory(config.policy.device)
    place = WIDTHS[config.policy.dtype] * weights
    copies = 2 if config.overlaps else 1
    stepped = 0.0
    if not config.policy.lora_rank:
        half = WIDTHS[config.policy.dtype] < FLOAT or config.learner.offload
        stepped = (FLOAT + MOMENTS[config.learner.optimizer] + FLOAT * half) * weights
    beside = stepped if config.learner.offload and gpu else 0.0
    on_device = place + stepped - beside if gpu else 0.0
    memory = beside if gpu else copies * place + stepped
    whole, free = main_memory()
    there = whole + psutil.swap_memory().total, gpu
    return Least(weights, memory, on_device, there, free)


def check_memory(config: Config) -> Least:
    """Look whether a model can be trained with a configuration on this machine at all.

    Returns:
        What it takes at the least; all 0 where its weights cannot be counted beforehand.

    Raises:
        ConfigError: all that there is would not do. It names keys with which it would.
    """
    model = config.policy.model
    try:
        weights = least_weights(config_folder(model))
    except PolicyError as error:
        log.info("memory is not looked at beforehand: %s", error)
        weights = 0
    found = least(config, weights)
    if not found.fits:
        raise ConfigError("policy.model", model, f"{_sentence(found.words())} {help_for(config)}")
    return found


def help_for(config: Config) -> str:
    """The first keys of :data:`HELP` with which the same model fits, as a sentence."""
    weights = least_weights(config_folder(config.policy.model))
    present = config.model_dump()
    for keys in HELP:
        if least(build(present, keys), weights).fits:
            return f"Set {', '.join(f'{key} = {_shown(value)}' for key, value in keys.items())}."
    return "Take a smaller model: swarm-node plan tells how large one may be."


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
