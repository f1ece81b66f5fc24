"""A plan: model, machine, configuration, memory and speed, as values and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from node.config.config import Config
from node.config.schema import toml_value
from node.errors import ConfigError
from node.plan.choice import (
    FEW,
    Choice,
    Overrides,
    choose,
    fits,
    learning_rate,
    methods,
    narrow,
    need_of,
    prompt_tokens,
    work_of,
)
from node.plan.machine import Machine, card
from node.plan.memory import Workload
from node.plan.model_shape import ModelShape, gigabytes, shape_of
from node.plan.speed import Speed, estimated
from node.policy.model_source import config_folder

AT_RISK = 600.0  # seconds of training that a crash may lose, or one round if that is longer
LONGEST_ROUND = 600.0  # seconds; beyond, training on this machine is not useful
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
        return work_of(self.shape, self.choice.config, self.tokens)

    def keys(self, overrides: Overrides) -> dict[str, Any]:
        """Return the keys with ``overrides``; the learning rate suits their adapters."""
        keys = {**self.choice.keys, **overrides}
        rate = learning_rate(self.shape.parameters, adapters=bool(keys.get("policy.lora_rank")))
        return {**keys, "learner.lr": overrides.get("learner.lr", rate)}

    def larger(self) -> dict[str, int]:
        """Return, for each way to train, the parameters of the largest model that fits."""
        return {
            method.description: round(self.shape.parameters * self._factor(method.keys))
            for method in methods(self.machine)
        }

    def _factor(self, keys: Overrides) -> float:
        base_keys = {k: v for k, v in self.choice.keys.items() if k not in METHOD_KEYS}
        # Those of this model may be wider, because it is small.
        base_keys["learner.micro_batch_tokens"] = narrow(self.tokens)
        config = Config.with_overrides({**base_keys, **keys})

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
        need = self.choice.estimate
        return {
            "model": self.model,
            "shape": asdict(self.shape),
            "machine": asdict(self.machine),
            "training": self.choice.method.description,
            "task_tokens": self.tokens,
            "config": dict(self.choice.keys),
            "bytes": {name: {"device": d, "memory": m} for name, (d, m) in need.table().items()},
            "peak": {"device": need.peak("device"), "memory": need.peak("memory")},
            "disk": need.disk,
            "speed": {**asdict(self.speed), "round": self.speed.round},
            "largest": self.larger(),
            "useful": self.speed.round <= LONGEST_ROUND,
            "instead": list(instead(self)),
        }


_METHOD = "gradient_checkpointing", "optimizer", "offload"
METHOD_KEYS = (*(f"learner.{key}" for key in _METHOD), "policy.lora_rank")
"""Config keys that distinguish the ways to train."""


def plan(model: str, machine: Machine, tokens: int) -> Plan:
    """Read a model's configuration and choose; raise PolicyError or ConfigError."""
    folder = config_folder(model)
    shape = shape_of(folder, model)
    tokens = min(tokens, shape.context)
    choice = choose(shape, machine, model, tokens)
    speed = _speed_on(machine, shape, choice.config, tokens)
    if (rounds := int(AT_RISK / speed.round)) < choice.config.schedule.checkpoint_every:
        keys = {**choice.keys, "schedule.checkpoint_every": max(1, rounds)}
        choice = replace(choice, keys=keys, config=Config.with_overrides(keys))
    return Plan(model, folder, tokens, shape, machine, choice, speed)


def _speed_on(machine: Machine, shape: ModelShape, config: Config, tokens: int) -> Speed:
    return estimated(shape, config, work_of(shape, config, tokens), machine.device)


def lines(plan: Plan, written: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the model, machine, memory table, speed and changed config keys as text.

    ``written`` are the keys in node.toml, if the user changed the plan's.
    """
    for section in (_beginning, _speed, instead, _table, _larger):
        if texts := list(section(plan)):
            yield from texts
            yield ""
    yield "node.toml:"
    for key, value in (written or plan.choice.keys).items():
        yield f"  {key} = {toml_value(value)}"


def count(parameters: int) -> str:
    if parameters < 1e9:
        return f"{parameters / 1e6:.1f} million"
    return f"{parameters / 1e9:.1f} billion"


def _beginning(plan: Plan) -> Iterator[str]:
    shape, machine = plan.shape, plan.machine
    active = "" if shape.active == shape.parameters else f", {count(shape.active)} active"
    yield (
        f"{plan.model}: {shape.family}, {count(shape.parameters)} parameters{active}, "
        f"{shape.layers} layers, vocabulary {shape.vocabulary}, context {shape.context}"
    )
    speed = f"{machine.device.bandwidth / 1e9:.0f} GB/s {machine.device.source}"
    yield (
        f"on {machine.device.name} ({speed}), {machine.cores} cores, "
        f"{gigabytes(machine.usable)} of {gigabytes(machine.memory)} main memory usable"
    )
    yield f"trains {plan.choice.method.description}; tasks of {plan.tokens} tokens"


def _table(plan: Plan) -> Iterator[str]:
    need, machine = plan.choice.estimate, plan.machine
    rows = [("", "GPU", "main memory")]
    rows += [(name, _size(d), _size(m)) for name, (d, m) in need.table().items()]
    rows.append(("peak", _size(need.peak("device")), _size(need.peak("memory"))))
    free = machine.device.usable if machine.apart else 0
    rows.append(("usable", _size(free), _size(machine.usable)))
    disk = "" if machine.disk is None else f" of {_size(machine.disk)}"
    rows.append(("disk for checkpoints", "", _size(need.disk) + disk))
    for name, device, memory in rows:
        gpu_cell = f"{device:>10}" if machine.apart else ""
        yield f"{name:<22}{gpu_cell}{memory:>22}".rstrip()


def _size(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size else "-"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"


def _speed(plan: Plan) -> Iterator[str]:
    speed, work = plan.speed, plan.work
    yield (
        f"{speed.source}: generates {speed.write:.0f} tokens per second in a batch of "
        f"{work.rows}, trains on {speed.read:.0f}"
    )
    yield (
        f"a round of {work.completions} completions of {work.answer} tokens takes about "
        f"{_time(speed.round)}: {_time(speed.generate)} to generate, "
        f"{_time(speed.update)} to update"
    )


FEWER = {**FEW, "mixture.target_groups": 4}


def instead(plan: Plan) -> Iterator[str]:
    """If a round takes too long here, say so and which single changes would help."""
    if plan.speed.round <= LONGEST_ROUND:
        return
    longest = f"{LONGEST_ROUND / 60:.0f} min"
    yield f"With rounds of more than {longest}, training on this machine is not useful."
    options = list(_quicker(plan))
    yield "More useful options:" if options else "Use a smaller model and shorter completions."
    for seconds, change in options:
        yield f"  {change}: {_time(seconds)} per round"


def _quicker(plan: Plan) -> Iterator[tuple[float, str]]:
    """Yield seconds per round and words of each change that makes rounds short enough."""
    ratio = plan.speed.round / _seconds(plan, plan.shape, plan.tokens, {})
    for millions in (7000, 3000, 1500, 500, 250, 135, 60, 30, 10, 5):
        smaller = plan.shape.scaled(millions * 1e6 / plan.shape.parameters)
        seconds = ratio * _seconds(plan, smaller, plan.tokens, {})
        if millions * 1e6 < plan.shape.parameters and seconds <= LONGEST_ROUND:
            yield seconds, f"a model of {count(smaller.parameters)} parameters"
            break
    for tokens in (1024, 512, 256, 128, 64, 32):
        seconds = ratio * _seconds(plan, plan.shape, tokens, {})
        if tokens < plan.tokens and seconds <= LONGEST_ROUND:
            yield seconds, f"shorter completions, with --task-tokens {tokens}"
            break
    seconds = ratio * _seconds(plan, plan.shape, plan.tokens, FEWER)
    if seconds <= LONGEST_ROUND:
        keys = ", ".join(f"{key} = {value}" for key, value in FEWER.items())
        yield seconds, f"fewer and smaller groups ({keys})"
    if not plan.machine.apart and (seconds := _on_a_gpu(plan)) <= LONGEST_ROUND:
        yield seconds, f"a GPU of {GPU:.0f} GB"


GPU = 24.0  # GiB of a common GPU


def _on_a_gpu(plan: Plan) -> float:
    machine = replace(plan.machine, device=card(GPU))
    try:
        config = choose(plan.shape, machine, plan.model, plan.tokens).config
    except ConfigError:
        return float("inf")
    return _speed_on(machine, plan.shape, config, plan.tokens).round


def _seconds(plan: Plan, shape: ModelShape, tokens: int, keys: Overrides) -> float:
    """Estimate a round of the plan with another shape, task length or keys."""
    answer = {"engine.max_new_tokens": max(1, tokens - prompt_tokens(tokens))}
    config = Config.with_overrides({**plan.choice.keys, **answer, **keys})
    return _speed_on(plan.machine, shape, config, tokens).round


def _larger(plan: Plan) -> Iterator[str]:
    yield "the largest model of this type that would fit:"
    for method, parameters in plan.larger().items():
        yield f"  {method}: {count(parameters)}"
