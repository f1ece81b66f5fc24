"""Choose a model's configuration on a machine: the first of a ladder that fits."""

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
from node.plan.memory import MemoryEstimate, Place, estimate
from node.plan.model_shape import ModelShape, gigabytes
from node.policy.model_source import SHIPPED

FREE_SHARE = 0.9  # fraction of free memory or disk that a plan may use
SMALL, LARGE = 50_000_000, 400_000_000
"""Parameter counts: below, train as the shipped models; from there on, as large ones."""
RANK = 16
ROW = 1024  # minimum tokens of a micro-batch in the ladder

Overrides = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to train (``words``), slower than the previous one, and its config keys."""

    words: str
    keys: Overrides


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that fits; ``keys`` are all that differ from the defaults."""

    rung: Rung
    keys: Overrides
    config: Config
    estimate: MemoryEstimate


def rungs(machine: Machine) -> Iterator[Rung]:
    """Yield the ways to train that are installed, fastest first."""
    full: dict[str, Any] = {}
    yield Rung("all weights", dict(full))
    full |= {"learner.gradient_checkpointing": True}
    yield Rung("all weights, activations computed again", dict(full))
    full |= {"learner.micro_batch_tokens": ROW}
    yield Rung("all weights, in small micro-batches", dict(full))
    if find_spec("bitsandbytes") is not None:
        yield Rung("all weights, moments in 8 bit", {**full, "learner.optimizer": "adamw8bit"})
    if machine.apart:
        yield Rung("all weights, optimizer in main memory", {**full, "learner.offload": True})
    if find_spec("peft") is not None:
        adapters: dict[str, Any] = {"policy.lora_rank": RANK}
        yield Rung("adapters (LoRA)", dict(adapters))
        adapters |= {"learner.gradient_checkpointing": True}
        yield Rung("adapters, activations computed again", dict(adapters))
        adapters |= {"learner.micro_batch_tokens": ROW}
        yield Rung("adapters, in small micro-batches", dict(adapters))
        few = {"engine.group_size": 4, "mixture.local": 1, "mixture.external": 3}
        yield Rung("adapters, in small groups", {**adapters, **few})


def dtypes(machine: Machine, shape: ModelShape) -> tuple[str, ...]:
    """Return dtypes to try; bfloat16 first for a large model if no slower here."""
    flops = machine.device.flops
    if shape.parameters < SMALL:
        return ("float32",)
    quick = flops["bfloat16"] >= 0.8 * flops["float32"]
    return ("bfloat16",) if quick else ("float32", "bfloat16")


def learning_rate(shape: ModelShape, *, adapters: bool) -> float:
    """Return the usual learning rate for this size; LoRA uses ten times as much."""
    if shape.parameters < SMALL // 5:
        full = 3e-4
    elif shape.parameters < SMALL * 2:
        full = 3e-5
    else:
        full = 1e-5 if shape.parameters < LARGE else 1e-6
    return min(3e-4, 10 * full) if adapters else full


def choose(shape: ModelShape, machine: Machine, model: str, tokens: int) -> Choice:
    """Return the first way to train that fits; ``tokens``: prompt plus completion.

    Raises ConfigError if nothing fits, or the disk is too small for a checkpoint.
    """
    least: Choice | None = None
    # If half precision is slow, every way to train in float32 is faster than any in it.
    for dtype, rung in product(dtypes(machine, shape), rungs(machine)):
        choice = _choice(shape, machine, model, tokens, rung, dtype)
        if fits(choice.estimate, machine):
            return _with_disk(choice, shape, machine, tokens)
        least = min(least or choice, choice, key=lambda each: _excess(each.estimate, machine))
    assert least is not None
    raise ConfigError("policy.model", model, missing(least.estimate, machine))


def missing(need: MemoryEstimate, machine: Machine) -> str:
    """Describe what an estimate lacks, and the remedy."""
    place: Place = "device" if machine.apart and _short(need, machine, "device") else "memory"
    there = machine.device.free if place == "device" else machine.free
    where = machine.device.name if place == "device" else "main memory"
    return (
        f"Even {gigabytes(need.peak(place))} of {where} would be needed, and "
        f"{gigabytes(there)} are free: free some, take a smaller model, shorter tasks with "
        "--task-tokens, or install swarm-node[lora,adamw8bit] where either is missing."
    )


def prompt_tokens(tokens: int) -> int:
    """Return the prompt's part of a task's tokens."""
    return max(1, tokens // 4)


def fits(need: MemoryEstimate, machine: Machine) -> bool:
    """Return whether a tenth of the free memory remains."""
    return _excess(need, machine) <= 0


def _excess(need: MemoryEstimate, machine: Machine) -> float:
    short = _short(need, machine, "memory")
    return max(short, _short(need, machine, "device")) if machine.apart else short


def _short(need: MemoryEstimate, machine: Machine, place: Place) -> float:
    free = machine.device.free if place == "device" else machine.free
    return need.peak(place) - FREE_SHARE * free


def _choice(
    shape: ModelShape, machine: Machine, model: str, tokens: int, rung: Rung, dtype: str
) -> Choice:
    keys = _keys(shape, machine, model, tokens, rung, dtype)
    config = Config.with_overrides(keys)
    choice = Choice(rung, keys, config, need_of(shape, machine, config, tokens))
    if config.engine.kind == "vllm" and not fits(choice.estimate, machine):
        keys = {**keys, "schedule.mode": "sync", "engine.sleep_mode": True}
        config = Config.with_overrides(keys)
        choice = Choice(rung, keys, config, need_of(shape, machine, config, tokens))
    return choice


def need_of(shape: ModelShape, machine: Machine, config: Config, tokens: int) -> MemoryEstimate:
    """Estimate the memory on a machine; ``tokens`` as in :func:`choose`."""
    prompt, device = prompt_tokens(min(tokens, shape.context)), machine.device
    return estimate(shape, config, device=device.kind, prompt=prompt, device_memory=device.memory)


def _keys(
    shape: ModelShape, machine: Machine, model: str, tokens: int, rung: Rung, dtype: str
) -> dict[str, Any]:
    tokens = min(tokens, shape.context)
    keys: dict[str, Any] = {
        "policy.model": model if model in SHIPPED else _absolute(model),
        "policy.dtype": dtype,
        "policy.device": machine.device.kind,
        "engine.kind": "vllm" if vllm_here(machine, shape) else "transformers",
        "engine.group_size": 8,
        "engine.max_new_tokens": max(1, tokens - prompt_tokens(tokens)),
        "mixture.local": 4 if machine.apart else 2,
        "mixture.external": 4 if machine.apart else 6,
        "learner.lr": learning_rate(shape, adapters="policy.lora_rank" in rung.keys),
        "learner.micro_batch_tokens": max(ROW, min(8192, 8 * tokens)),
        **rung.keys,
    }
    if shape.parameters >= SMALL and not machine.apart:
        keys["node.threads"] = machine.cores  # large products use all cores
    written = keys["mixture.local"] * keys["engine.group_size"]
    # An evaluation every tenth round samples at most a quarter of what ten rounds sample.
    keys["schedule.eval_tasks"] = max(16, min(64, 10 * written // 4))
    return keys


def _absolute(model: str) -> str:
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model


def vllm_here(machine: Machine, shape: ModelShape) -> bool:
    """Return whether vLLM is installed and worth its start time on this GPU."""
    if machine.device.kind != "cuda" or shape.parameters < SMALL:
        return False
    try:
        ENGINES.load("vllm")().check()
    except NodeError:
        return False
    return True


def _with_disk(choice: Choice, shape: ModelShape, machine: Machine, tokens: int) -> Choice:
    """Keep fewer checkpoints if the disk is too small."""
    few = {"schedule.keep_checkpoints": 1, "schedule.keep_best": 0}
    for keys in (choice.keys, {**choice.keys, **few}):
        config = Config.with_overrides(keys)
        need = need_of(shape, machine, config, tokens)
        if need.disk <= FREE_SHARE * machine.disk:
            return Choice(choice.rung, keys, config, need)
    remedy = (
        f"One checkpoint and the next take {gigabytes(need.disk)} of disk, and "
        f"{gigabytes(machine.disk)} are free: free some, or name a folder on another disk."
    )
    raise ConfigError("schedule.keep_checkpoints", 1, remedy)
