"""The first configuration that fits a model on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from node.config.config import Config
from node.config.registry import ENGINES
from node.errors import ConfigError, NodeError
from node.plan.machine import Machine
from node.plan.memory import MemoryEstimate, Place, Workload, estimate, vllm_share
from node.plan.model_shape import ModelShape, gigabytes
from node.policy.model_source import SHIPPED

FREE_SHARE = 0.9  # fraction of usable memory or free disk that a plan may use
SMALL = 50_000_000  # parameters below which a model is handled as the shipped ones
LEARNING_RATES = ((10_000_000, 3e-4), (100_000_000, 3e-5), (200_000_000, 2e-5), (400_000_000, 1e-5))
LARGE_RATE = 1e-6
"""Learning rates below so many parameters, and from the last on; LoRA takes ten times as much."""
RANK = 16
FEW = {"engine.group_size": 4, "mixture.local": 1, "mixture.external": 3}  # and small groups
ROW = 1024  # minimum tokens of a micro-batch in the ladder
WIDEST = 1 << 14  # maximum tokens of a micro-batch on a GPU, where launches cost little by then

Overrides = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train, slower than the previous one, and its config keys."""

    description: str
    keys: Overrides


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that fits; ``keys`` are all that differ from the defaults."""

    method: Method
    keys: Overrides
    config: Config
    estimate: MemoryEstimate


def methods(machine: Machine) -> Iterator[Method]:
    """Yield the ways to train that are installed, fastest first."""
    checkpointing = {"learner.gradient_checkpointing": True}
    small = {**checkpointing, "learner.micro_batch_tokens": ROW}
    yield Method("all weights", {})
    yield Method("all weights, gradient checkpointing", checkpointing)
    yield Method("all weights, small micro-batches", small)
    if find_spec("bitsandbytes") is not None:
        yield Method("all weights, 8-bit optimizer", {**small, "learner.optimizer": "adamw8bit"})
    if machine.apart:
        offload = {"learner.offload": True}
        yield Method("all weights, optimizer in main memory", {**checkpointing, **offload})
        yield Method("all weights, optimizer in main memory, small batches", {**small, **offload})
    if find_spec("peft") is not None:
        lora = {"policy.lora_rank": RANK}
        yield Method("adapters (LoRA)", lora)
        yield Method("LoRA, gradient checkpointing", {**lora, **checkpointing})
        yield Method("LoRA, small micro-batches", {**lora, **small})
        yield Method("LoRA, small groups", {**lora, **small, **FEW})


def dtypes(machine: Machine, shape: ModelShape) -> tuple[str, ...]:
    """Return dtypes to try; bfloat16 first for a large model if no slower here."""
    flops = machine.device.flops
    if shape.parameters < SMALL:
        return ("float32",)
    is_fast = flops["bfloat16"] >= 0.8 * flops["float32"]
    return ("bfloat16",) if is_fast else ("float32", "bfloat16")


def learning_rate(parameters: int, *, adapters: bool) -> float:
    """Return the learning rate by the rule that ``learner.lr`` states."""
    full_rate = next((rate for limit, rate in LEARNING_RATES if parameters < limit), LARGE_RATE)
    return min(LEARNING_RATES[0][1], round(10 * full_rate, 9)) if adapters else full_rate


def choose(shape: ModelShape, machine: Machine, model: str, tokens: int) -> Choice:
    """Return the first way to train that fits; ``tokens``: prompt plus completion.

    Raises ConfigError if nothing fits, or the disk is too small for a checkpoint.
    """
    planner = _Planner(shape, machine, model, tokens)
    smallest: Choice | None = None
    # If half precision is slow, every way to train in float32 is faster than any in it.
    for dtype, method in product(dtypes(machine, shape), methods(machine)):
        choice = planner.choice(method, dtype)
        if fits(choice.estimate, machine):
            return planner.within_disk(planner.with_wide_batches(choice))
        smallest = min(smallest or choice, choice, key=lambda each: _excess(each.estimate, machine))
    assert smallest is not None
    raise ConfigError("policy.model", model, missing(smallest.estimate, machine))


def missing(need: MemoryEstimate, machine: Machine) -> str:
    place: Place = "device" if machine.apart and _short(need, machine, "device") else "memory"
    usable = machine.device.usable if place == "device" else machine.usable
    label = machine.device.name if place == "device" else "main memory"
    return (
        f"It needs at least {gigabytes(need.peak(place))} of {label}, and {gigabytes(usable)} can "
        "be used: use a smaller model, shorter tasks with --task-tokens, or run pip install "
        "'.[lora,adamw8bit]' in the clone if either is missing."
    )


def prompt_tokens(tokens: int) -> int:
    return max(1, tokens // 4)


def work_of(shape: ModelShape, config: Config, tokens: int) -> Workload:
    """Return what a round computes; ``tokens`` as in :func:`choose`."""
    return Workload.of(config, shape, prompt_tokens(min(tokens, shape.context)))


def fits(need: MemoryEstimate, machine: Machine) -> bool:
    """Return whether a tenth of the usable memory remains."""
    return _excess(need, machine) <= 0


def _excess(need: MemoryEstimate, machine: Machine) -> float:
    excess = _short(need, machine, "memory")
    return max(excess, _short(need, machine, "device")) if machine.apart else excess


def _short(need: MemoryEstimate, machine: Machine, place: Place) -> float:
    usable = machine.device.usable if place == "device" else machine.usable
    return need.peak(place) - FREE_SHARE * usable


def need_of(shape: ModelShape, machine: Machine, config: Config, tokens: int) -> MemoryEstimate:
    """Estimate the memory on a machine; ``tokens`` as in :func:`choose`."""
    prompt, device = prompt_tokens(min(tokens, shape.context)), machine.device
    return estimate(shape, config, device=device.kind, prompt=prompt, device_memory=device.memory)


def narrow(tokens: int) -> int:
    """Return the tokens of a micro-batch, of eight completions or less, before it is widened."""
    return max(ROW, min(8192, 8 * tokens))


@dataclass(frozen=True, slots=True)
class _Planner:
    """Configurations of one model on one machine, for tasks of ``tokens`` tokens."""

    shape: ModelShape
    machine: Machine
    model: str
    tokens: int

    def choice(self, method: Method, dtype: str) -> Choice:
        """Return the configuration of one way to train, whether or not it fits."""
        keys = self._keys(method, dtype)
        choice = self._chosen(method, keys)
        if choice.config.engine.backend != "vllm":
            return choice
        work = work_of(self.shape, choice.config, self.tokens)
        share = vllm_share(self.shape, choice.config, work, self.machine.device.memory)
        keys["engine.gpu_memory_utilization"] = share
        choice = self._chosen(method, keys)
        if not fits(choice.estimate, self.machine):
            sync_keys = {"schedule.mode": "sync", "engine.sleep_mode": True}
            return self._chosen(method, {**keys, **sync_keys})
        return choice

    def with_wide_batches(self, choice: Choice) -> Choice:
        """Double a GPU's micro-batches, up to a whole update, while they fit."""
        key = "learner.micro_batch_tokens"
        if not self.machine.apart or key in choice.method.keys:
            return choice
        while True:
            tokens = choice.keys[key]
            work = work_of(self.shape, choice.config, self.tokens)
            wider = self._chosen(choice.method, {**choice.keys, key: 2 * tokens})
            if tokens >= min(WIDEST, work.read) or not fits(wider.estimate, self.machine):
                return choice
            choice = wider

    def within_disk(self, choice: Choice) -> Choice:
        """Keep fewer checkpoints if the disk is too small; raise ConfigError if none fits."""
        disk = self.machine.disk
        if disk is None or choice.estimate.disk <= FREE_SHARE * disk:
            return choice
        keys = {"schedule.keep_checkpoints": 1, "schedule.keep_best": 0}
        smaller = self._chosen(choice.method, {**choice.keys, **keys})
        if smaller.estimate.disk <= FREE_SHARE * disk:
            return smaller
        remedy = (
            f"Two checkpoints need {gigabytes(smaller.estimate.disk)} of disk, and "
            f"{gigabytes(disk)} are free: free some space, or name a folder on another disk."
        )
        raise ConfigError("schedule.keep_checkpoints", 1, remedy)

    def _chosen(self, method: Method, keys: Overrides) -> Choice:
        config = Config.with_overrides(keys)
        return Choice(method, keys, config, need_of(self.shape, self.machine, config, self.tokens))

    def _keys(self, method: Method, dtype: str) -> dict[str, Any]:
        shape, machine = self.shape, self.machine
        tokens = min(self.tokens, shape.context)
        folder = Path(self.model).expanduser()
        is_folder = self.model not in SHIPPED and folder.is_dir()
        keys: dict[str, Any] = {
            "policy.model": str(folder.resolve()) if is_folder else self.model,
            "policy.dtype": dtype,
            "policy.device": machine.device.kind,
            "engine.backend": "vllm" if vllm_here(machine, shape) else "transformers",
            "engine.group_size": 8,
            "engine.max_new_tokens": max(1, tokens - prompt_tokens(tokens)),
            "mixture.local": 4 if machine.apart else 2,
            "mixture.external": 4 if machine.apart else 6,
            "learner.lr": learning_rate(
                shape.parameters, adapters="policy.lora_rank" in method.keys
            ),
            "learner.micro_batch_tokens": narrow(tokens),
            **method.keys,
        }
        if shape.parameters >= SMALL and not machine.apart:
            keys["node.threads"] = machine.cores  # large products use all cores
        completions = keys["mixture.local"] * keys["engine.group_size"]
        # An evaluation every tenth round samples at most a quarter of what ten rounds sample.
        keys["schedule.eval_tasks"] = max(16, min(64, 10 * completions // 4))
        return keys


def vllm_here(machine: Machine, shape: ModelShape) -> bool:
    """Return whether vLLM is installed and worth its start time on this GPU.

    It takes a part of the whole GPU, so it is not for several nodes on one.
    """
    device = machine.device
    if device.kind != "cuda" or shape.parameters < SMALL or device.usable < device.memory:
        return False
    try:
        ENGINES.load("vllm")().check()
    except NodeError:
        return False
    return True
