"""A plan: a model, a machine, the configuration that fits both, and what it takes and yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from node.plan.choice import Choice, choose, fits, prompt_tokens, rungs
from node.plan.estimate import estimate
from node.plan.machine import Machine
from node.plan.model_shape import ModelShape, shape_of
from node.plan.speed import Speed, estimated
from node.plan.workload import Workload
from node.policy.model_source import config_folder

STEPS = 60
"""Halvings by which the largest model that fits is found."""
MOST = 1e6
"""Times the model, above which nothing larger is looked for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node with a model on a machine is to be.

    Attributes:
        folder: with the model's ``config.json``.
        tokens: of a task, its prompt and its answer together.
    """

    model: str
    folder: Path
    tokens: int
    shape: ModelShape
    machine: Machine
    choice: Choice
    speed: Speed

    @property
    def work(self) -> Workload:
        """Of a round."""
        return Workload.of(self.choice.config, self.shape, prompt_tokens(self.tokens))

    def larger(self) -> dict[str, int]:
        """For each way to train, the parameters of the largest model of this kind that fits."""
        return {
            rung.words: round(self.shape.parameters * self._factor(rung.keys))
            for rung in rungs(self.machine)
        }

    def _factor(self, keys: Any) -> float:
        """Of the parameters, up to which the chosen configuration fits with these keys changed."""
        named = {k: v for k, v in self.choice.keys.items() if k not in RUNG_KEYS}
        config = type(self.choice.config).with_overrides({**named, **keys})

        def fitting(factor: float) -> bool:
            told = estimate(
                self.shape.scaled(factor),
                config,
                device=self.machine.device.kind,
                prompt=prompt_tokens(self.tokens),
                device_memory=self.machine.device.memory,
            )
            return fits(told, self.machine)

        return _largest(fitting)

    def as_json(self) -> dict[str, Any]:
        """For other programs; sizes are bytes, times seconds."""
        told = self.choice.estimate
        parts = told.table()
        machine = asdict(self.machine)
        return {
            "model": self.model,
            "shape": asdict(self.shape),
            "machine": machine,
            "training": self.choice.rung.words,
            "task_tokens": self.tokens,
            "config": dict(self.choice.keys),
            "bytes": {name: {"device": d, "memory": m} for name, (d, m) in parts.items()},
            "peak": {"device": told.peak("device"), "memory": told.peak("memory")},
            "disk": told.disk,
            "speed": {**asdict(self.speed), "round": self.speed.round},
            "largest": self.larger(),
        }


RUNG_KEYS = (
    "learner.gradient_checkpointing",
    "learner.optimizer",
    "learner.offload",
    "policy.lora_rank",
)
"""Of a configuration, what tells one way to train from another."""


def plan(model: str, machine: Machine, tokens: int) -> Plan:
    """Look at a model's configuration and choose.

    Raises:
        PolicyError: there is no such model, or its configuration is of none that can be trained.
        ConfigError: nothing fits.
    """
    folder = config_folder(model)
    shape = shape_of(folder, model)
    tokens = min(tokens, shape.context)
    choice = choose(shape, machine, model, tokens)
    work = Workload.of(choice.config, shape, prompt_tokens(tokens))
    speed = estimated(shape, choice.config, work, machine.device)
    return Plan(model, folder, tokens, shape, machine, choice, speed)


def probed(found: Plan, tell: Callable[[str], None]) -> Plan:
    """The plan with speeds measured here: see :func:`node.plan.probe.probe`."""
    from node.plan.probe import probe

    return replace(found, speed=probe(found, tell))


def _largest(fitting: Callable[[float], bool]) -> float:
    """The largest factor that fits, up to :data:`MOST`; 0 where none does."""
    low, high = 0.0, MOST
    if fitting(high):
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    return low
