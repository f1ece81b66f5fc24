"""Updates of a learner: speed, memory, and the ways to make memory do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from on_gpu.machine import forget_peak, matrix_flops, peak_gb, typical
from on_gpu.models import (
    FULL_BYTES,
    LORA_BYTES,
    SHAPES,
    check_room,
    let_go,
    random_groups,
    random_policy,
)
from on_gpu.planned import planned_gb
from on_gpu.section import Row, Settings, SkippedError

KEYS: dict[str, Any] = {"lr": 1e-6, "groups_per_step": 0, "micro_batch_tokens": 1 << 14}
"""Of a learner, if a section sets no others: ``init`` writes such micro-batches for a large GPU."""
Sides = tuple[int, int, int, int]
"""Tokens of a prompt, groups, answers of each, and tokens of an answer."""


def full(settings: Settings) -> Iterator[Row]:
    """All weights trained, one model after the other."""
    return _sizes(settings, FULL_BYTES, lora=False)


def lora(settings: Settings) -> Iterator[Row]:
    """Adapters trained beside frozen weights."""
    return _sizes(settings, LORA_BYTES, lora=True)


def shared(settings: Settings) -> Iterator[Row]:
    """Four own groups, and the same with four of peers: each group's gradient is bounded.

    The own groups are also read in shared rows, with a mask and unpacked.
    """
    device, turns = settings.device, 1 if settings.smoke else 3
    for size in settings.sizes[:2]:
        policy = random_policy(settings, size)
        local = _groups(policy, settings)
        peers = [replace(group, local=False) for group in local]
        for what, groups, layout in (
            ("own groups", local, {}),
            ("own groups and peers'", local + peers, {}),
            ("own groups with a mask", local, {"unpacking": math.inf}),
            ("own groups unpacked", local, {"unpacking": -1e15}),
        ):
            learner = _learner(policy, {})
            learner.sharing = replace(learner.sharing, **layout)
            forget_peak(device)
            yield {
                "what": f"{size} billion, {len(groups)} {what}",
                "update_s": round(typical(partial(learner.update, groups), device, turns), 3),
                "peak_gb": peak_gb(device),
            }
            del learner
        del policy
        let_go()


def variants(settings: Settings) -> Iterator[Row]:
    """The keys that make an update smaller, and half precision of the other kind."""
    size = settings.sizes[len(settings.sizes) // 2]
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"gradient_checkpointing": True},
        {"offload": True},
        {"optimizer": "adamw8bit"},
    )
    for keys in ways:
        yield _tried(settings, size, keys)
    yield _tried(settings, size, {}, "float16")


def long_answers(settings: Settings) -> Iterator[Row]:
    """Prompts of 512 tokens and completions of thousands."""
    size = settings.sizes[len(settings.sizes) // 2]
    prompt, lengths = (32, (64,)) if settings.smoke else (512, (2_048, 4_096, 8_192))
    for length in lengths:
        keys = {"gradient_checkpointing": True, "max_completion_tokens": length}
        answers = 4 if settings.smoke else 8
        yield _tried(settings, size, keys, sides=(prompt, 1, answers, length))


def halving(settings: Settings) -> Iterator[Row]:
    """An update that is given less memory than its micro-batch takes is cut, and is the same."""
    import torch

    if not settings.on_gpu:
        raise SkippedError("memory is bounded on GPUs alone")
    device, size = settings.device, settings.sizes[0]
    _, there = torch.cuda.mem_get_info(device)
    room = None
    for what in ("with all memory", "with too little"):
        policy = random_policy(settings, size)
        groups = _groups(policy, settings)
        learner = _learner(policy, {"micro_batch_tokens": 1 << 20})
        forget_peak(device)
        held = torch.cuda.memory_allocated(device)
        if room:
            torch.cuda.set_per_process_memory_fraction(min(1.0, room / there), device)
        stats = learner.update(groups)
        room = held + 0.6 * (torch.cuda.max_memory_allocated(device) - held)
        yield {
            "what": what,
            "halved": stats.halved,
            "loss": stats.loss,
            "gradient_norm": stats.grad_norm,
            "peak_gb": peak_gb(device),
        }
        del policy, learner
        let_go()


def _sizes(settings: Settings, each: int, *, lora: bool) -> Iterator[Row]:
    for size in settings.sizes:
        try:
            check_room(settings, SHAPES[size], each)
        except SkippedError as reason:
            yield {"what": _named(size, lora, {}, ""), "skipped": str(reason)}
            continue
        yield _tried(settings, size, {}, lora=lora, bare=not lora)


def _tried(
    settings: Settings, size: str, keys: dict[str, Any], dtype: str = "", **more: Any
) -> Row:
    """A row of figures, or why there is none: no memory, or no library."""
    from node.errors import NodeError

    try:
        return _update(settings, size, keys, dtype, **more)
    except (NodeError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "out of memory" not in str(error).lower():
            raise
        named = _named(size, more.get("lora", False), keys, dtype)
        return {"what": named, "failed": str(error).strip().splitlines()[0]}
    finally:
        let_go()


def _update(
    settings: Settings,
    size: str,
    keys: dict[str, Any],
    dtype: str,
    *,
    lora: bool = False,
    bare: bool = False,
    sides: Sides | None = None,
) -> Row:
    """Whole updates of one policy, and the least that training on the same tensors costs."""
    device, turns = settings.device, 1 if settings.smoke else 3
    policy = random_policy(settings, size, dtype=dtype, lora=lora)
    prompt, count, answers, length = sides or _sides(settings)
    groups = random_groups(policy, count, answers, prompt, length)
    forget_peak(device)
    learner = _learner(policy, keys)
    once = typical(lambda: learner.update(groups), device, turns)
    peak = peak_gb(device)
    batches = learner.batches(learner.rows(groups))
    rows = [number for batch in batches for number in batch.groups]
    read = sum(batch.input_ids.numel() for batch in batches)
    longest = max(batch.input_ids.shape[1] for batch in batches)
    used = {**KEYS, **keys}
    loaded = {"dtype": dtype or settings.dtype, "lora_rank": 16 * lora}
    flops = read * SHAPES[size].flops(longest, 2 if lora else 3)
    best = matrix_flops(device, str(policy.model.dtype).split(".")[1], smoke=settings.smoke)
    row: Row = {
        "what": _named(size, lora, keys, dtype),
        "tokens": read,
        "micro_batches": len(batches),
        "prompts_shared": len(rows) < sum(len(g.completions) for g in groups),
        "tokens_per_s": round(read / once),
        "share_of_matrix_peak": round(flops / once / best, 3),
        "peak_gb": peak,
        "plan_gb": planned_gb(settings, size, used, loaded, (prompt, count, answers, length)),
        "least_gb": round(SHAPES[size].parameters * (LORA_BYTES if lora else FULL_BYTES) / 1e9, 2),
    }
    if bare:
        del learner
        let_go()
        row |= _beside(policy, batches, once, device, turns)
    return row


def _beside(policy: Any, batches: Any, once: float, device: str, turns: int) -> Row:
    """Bare forward, backward and AdamW on float32 master weights."""
    from bare import BareTrainer

    trainer = BareTrainer(policy.model)
    forget_peak(device)
    least = typical(lambda: trainer.step(batches), device, turns)
    return {"learner_over_bare": round(least / once, 2), "bare_peak_gb": peak_gb(device)}


def _learner(policy: Any, keys: dict[str, Any]) -> Any:
    from node.config.learning import LearnerSection
    from node.learner.learner import Learner

    return Learner(policy, LearnerSection(**{**KEYS, **keys}))


def _groups(policy: Any, settings: Settings) -> Any:
    prompt, count, answers, length = _sides(settings)
    return random_groups(policy, count, answers, prompt, length)


def _sides(settings: Settings) -> Sides:
    return (16, 2, 4, 16) if settings.smoke else (128, 4, 8, 512)


def _named(size: str, lora: bool, keys: dict[str, Any], dtype: str) -> str:
    way = ["LoRA" if lora else "full"]
    way += [name if value is True else str(value) for name, value in keys.items()]
    return ", ".join([f"{size} billion", *way, *filter(None, [dtype])])
