"""A plan: model, machine, fitting configuration, memory and speed, and its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from node.config.schema import toml_value
from node.plan.choice import Choice, choose, fits, need_of, prompt_tokens, rungs
from node.plan.machine import Machine
from node.plan.memory import Workload
from node.plan.model_shape import ModelShape, gigabytes, shape_of
from node.plan.speed import Speed, estimated
from node.policy.model_source import config_folder

STEPS = 60  # of bisection, to find the largest model that fits
MOST = 1e6  # largest multiple of the model's size in that search


@dataclass(frozen=True, slots=True)
class Plan:
    """A model's plan on a machine; ``tokens`` counts a task's prompt and completion."""

    model: str
    folder: Path
    tokens: int
    shape: ModelShape
    machine: Machine
    choice: Choice
    speed: Speed

    @property
    def work(self) -> Workload:
        """The workload of a round."""
        return Workload.of(self.choice.config, self.shape, prompt_tokens(self.tokens))

    def larger(self) -> dict[str, int]:
        """Return, for each way to train, the parameters of the largest model that fits."""
        return {
            rung.words: round(self.shape.parameters * self._factor(rung.keys))
            for rung in rungs(self.machine)
        }

    def _factor(self, keys: Any) -> float:
        named = {k: v for k, v in self.choice.keys.items() if k not in RUNG_KEYS}
        config = type(self.choice.config).with_overrides({**named, **keys})

        def fitting(factor: float) -> bool:
            shape = self.shape.scaled(factor)
            return fits(need_of(shape, self.machine, config, self.tokens), self.machine)

        low, high = 0.0, MOST
        if fitting(high):
            return high
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if fitting(middle) else (low, middle)
        return low

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON values; sizes in bytes, times in seconds."""
        need, machine, speed = self.choice.estimate, asdict(self.machine), asdict(self.speed)
        for values in (machine["device"], speed):
            values["told"] = values.pop("source")
        return {
            "model": self.model,
            "shape": asdict(self.shape),
            "machine": machine,
            "training": self.choice.rung.words,
            "task_tokens": self.tokens,
            "config": dict(self.choice.keys),
            "bytes": {name: {"device": d, "memory": m} for name, (d, m) in need.table().items()},
            "peak": {"device": need.peak("device"), "memory": need.peak("memory")},
            "disk": need.disk,
            "speed": {**speed, "round": self.speed.round},
            "largest": self.larger(),
        }


RUNG_KEYS = (
    "learner.gradient_checkpointing",
    "learner.optimizer",
    "learner.offload",
    "policy.lora_rank",
)
"""Config keys that distinguish the ways to train."""


def plan(model: str, machine: Machine, tokens: int) -> Plan:
    """Read a model's configuration and choose.

    Raises ``PolicyError`` if it cannot be loaded or trained, ``ConfigError`` if nothing fits.
    """
    folder = config_folder(model)
    shape = shape_of(folder, model)
    tokens = min(tokens, shape.context)
    choice = choose(shape, machine, model, tokens)
    work = Workload.of(choice.config, shape, prompt_tokens(tokens))
    speed = estimated(shape, choice.config, work, machine.device)
    return Plan(model, folder, tokens, shape, machine, choice, speed)


def probed(found: Plan, tell: Callable[[str], None]) -> Plan:
    """Return the plan with measured speeds (:func:`node.plan.speed.probe`)."""
    from node.plan.speed import probe

    return replace(found, speed=probe(found, tell))


HEADS = ("", "GPU", "main memory")
MILLION = 1e6
BILLION = 1e9


def lines(plan: Plan) -> Iterator[str]:
    """Yield the model, machine, memory table, speed and changed config keys as text."""
    for part in (_beginning, _table, _speed, _larger):
        yield from part(plan)
        yield ""
    yield "node.toml:"
    for key, value in plan.choice.keys.items():
        yield f"  {key} = {toml_value(value)}"


def count(parameters: int) -> str:
    """Format a parameter count."""
    if parameters < BILLION:
        return f"{parameters / MILLION:.1f} million"
    return f"{parameters / BILLION:.1f} billion"


def _beginning(plan: Plan) -> Iterator[str]:
    shape, machine = plan.shape, plan.machine
    active = "" if shape.active == shape.parameters else f", {count(shape.active)} active"
    yield (
        f"{plan.model}: {shape.family}, {count(shape.parameters)} parameters{active}, "
        f"{shape.layers} layers, {shape.vocabulary} words, context {shape.context}"
    )
    speed = f"{machine.device.bandwidth / 1e9:.0f} GB/s {machine.device.source}"
    yield (
        f"on {machine.device.name} ({speed}), {machine.cores} cores, "
        f"{gigabytes(machine.free)} of {gigabytes(machine.memory)} main memory free"
    )
    yield f"trains {plan.choice.rung.words}; tasks of {plan.tokens} tokens"


def _table(plan: Plan) -> Iterator[str]:
    need, machine = plan.choice.estimate, plan.machine
    rows = [HEADS, *((name, _size(d), _size(m)) for name, (d, m) in need.table().items())]
    rows.append(("at once, at most", _size(need.peak("device")), _size(need.peak("memory"))))
    free = machine.device.free if machine.apart else 0
    rows.append(("free", _size(free), _size(machine.free)))
    rows.append(("disk for checkpoints", "", f"{_size(need.disk)} of {_size(machine.disk)}"))
    for name, device, memory in rows:
        yield f"{name:<22}{device:>10}{memory:>22}".rstrip()


def _size(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size else "-"


def _speed(plan: Plan) -> Iterator[str]:
    speed, work = plan.speed, plan.work
    yield (
        f"{speed.source}: writes {speed.write:.0f} tokens a second in {work.rows} rows at once, "
        f"learns from {speed.read:.0f}"
    )
    yield (
        f"a round of {work.written} answers of {work.answer} tokens: {speed.generate:.0f} s to "
        f"write them, {speed.update:.0f} s to learn"
    )


def _larger(plan: Plan) -> Iterator[str]:
    yield "the largest model of this kind that would fit:"
    for words, parameters in plan.larger().items():
        yield f"  {words}: {count(parameters)}"
