"""The embedded engine: how fast it writes, what it launches, and whether it is right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from on_gpu.machine import copied_bytes, forget_peak, launches, peak_gb, typical
from on_gpu.models import SHAPES, check_room, let_go, prompts, random_policy
from on_gpu.section import Row, Settings, SkippedError

GREEDY_TOKENS = 32
BUDGET = 1 << 14
"""Tokens of a forward pass."""


def speed(settings: Settings) -> Iterator[Row]:
    """Tokens a second, against ``transformers.generate`` and against reading the weights."""
    for size in settings.sizes:
        rows = (2,) if settings.smoke else (8, 64, 512) if size == settings.sizes[0] else (8, 64)
        try:
            check_room(settings, SHAPES[size], 4)
        except SkippedError as reason:
            yield {"what": f"{size} billion", "skipped": str(reason)}
            continue
        policy = random_policy(settings, size)
        for count in rows:
            yield _speed(settings, size, policy, count)
        del policy
        let_go()


def long_answers(settings: Settings) -> Iterator[Row]:
    """Groups of eight behind prompts of 512 tokens, 64 rows in all."""
    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    size = settings.sizes[min(1, len(settings.sizes) - 1)]
    prompt, lengths, groups = (16, (32,), 1) if settings.smoke else (512, (2_048, 8_192), 8)
    policy = random_policy(settings, size)
    for length in lengths:
        engine, asked = TransformersEngine(policy, seed=0), prompts(groups, prompt)
        sampling = Sampling(max_new_tokens=length)
        forget_peak(settings.device)
        once = typical(partial(engine.generate, asked, 8, sampling), settings.device, 1)
        yield {
            "what": f"{size} billion, {8 * groups} rows of {length}",
            "tokens_per_s": round(8 * groups * length / once),
            "ms_a_step": round(1e3 * once / length, 2),
            "peak_gb": peak_gb(settings.device),
        }


def correctness(settings: Settings) -> Iterator[Row]:
    """Greedy text against ``transformers.generate``; log-probs against the learner's.

    Text is compared in float32, where kernels that add up in other orders differ least; it may
    part where two tokens are as likely as each other to the last bit but some.
    """
    size = settings.sizes[0]
    for dtype in dict.fromkeys(("float32", settings.dtype)):
        policy = random_policy(settings, size, dtype=dtype)
        asked = prompts(3, 16) + prompts(3, 40)[1:]
        for graphs in (True, False) if settings.on_gpu else (False,):
            how = "recorded" if graphs else "launched"
            gap = _gap(policy, asked, graphs=graphs)
            row: Row = {"what": f"{size} billion, {dtype}, {how}", "log_prob_gap_nat": gap}
            if dtype == "float32":
                row["greedy_tokens_equal"] = _equal(policy, asked, graphs=graphs)
            yield row
        if dtype == "float32" and settings.on_gpu:
            yield {"what": "recorded, slots that grow", "greedy_tokens_equal": _growing(policy)}
        del policy
        let_go()


def _growing(policy: Any) -> float:
    """Share of greedy completions that graphs do not change, in batches of many sizes.

    The cache has to grow, and is then larger than what is asked for.
    """
    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    engines = [TransformersEngine(policy, seed=0, graphs=graphs) for graphs in (True, False)]
    equal: list[bool] = []
    for count, length, tokens in ((3, 16, 16), (20, 100, 300), (5, 300, 40), (40, 16, 16)):
        asked, greedy = prompts(count, length), Sampling(max_new_tokens=tokens, greedy=True)
        both = [engine.generate(asked, 2, greedy) for engine in engines]
        for ours, theirs in zip(*both, strict=True):
            equal += [a.tokens.ids == b.tokens.ids for a, b in zip(ours, theirs, strict=True)]
    return round(sum(equal) / len(equal), 3)


def _speed(settings: Settings, size: str, policy: Any, count: int) -> Row:
    from bare import bare_generate

    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    device, turns = settings.device, 1 if settings.smoke else 3
    length, tokens = (16, 16) if settings.smoke else (128, 128)
    asked, each = prompts(max(1, count // 8), length), min(count, 8)
    engine = TransformersEngine(policy, seed=0, max_rows=count)
    sampling = Sampling(max_new_tokens=tokens)

    def ours(most: int = tokens) -> Any:
        return engine.generate(asked, each, Sampling(max_new_tokens=most))

    def theirs(most: int = tokens) -> Any:
        return bare_generate(policy.model, asked, each, most, policy.pad_id)

    forget_peak(device)
    once = typical(lambda: engine.generate(asked, each, sampling), device, turns)
    peak = peak_gb(device)
    short = max(1, tokens // 4)  # the reference takes ten times as long, and as long every step
    reference = typical(lambda: theirs(short), device, 1) * tokens / short
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    reading = 2 * weights / copied_bytes(device, smoke=settings.smoke)
    return {
        "what": f"{size} billion, {count} rows",
        "tokens_per_s": round(count * tokens / once),
        "over_generate": round(reference / once, 2),
        "share_of_reading_weights": round(reading * tokens / once, 2),
        "ms_a_step": round(1e3 * once / tokens, 2),
        "launches_a_step": _a_step(ours),
        "launches_a_step_generate": _a_step(theirs),
        "peak_gb": peak,
    }


def _a_step(work: Any) -> float | None:
    """Launches of one more token, from what 4 and 12 of them take."""
    few, many = (launches(lambda most=most: work(most)) for most in (4, 12))
    return None if few is None or many is None else round((many - few) / 8, 1)


def _gap(policy: Any, asked: list[list[int]], *, graphs: bool) -> float:
    """Mean distance, nats a token, of the engine's log-probs from the learner's."""
    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine
    from node.learner.batches import Row as Line
    from node.learner.batches import TrainingCompletion
    from node.learner.logprobs import TokenScores
    from node.learner.steps import logprob_mismatch

    samples = TransformersEngine(policy, seed=0, graphs=graphs).generate(
        asked, 4, Sampling(max_new_tokens=GREEDY_TOKENS)
    )
    lines = [
        Line(tuple(ids), (TrainingCompletion.local(sample.tokens),), (0.0,), local=True)
        for ids, written in zip(asked, samples, strict=True)
        for sample in written
    ]
    gap = logprob_mismatch(policy, lines, TokenScores(policy.model, 1.0, BUDGET), BUDGET)
    assert gap is not None
    return round(gap, 6)


def _equal(policy: Any, asked: list[list[int]], *, graphs: bool) -> float:
    """Share of greedy completions that are those of ``transformers.generate``, token for token."""
    import torch

    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    greedy = Sampling(max_new_tokens=GREEDY_TOKENS, greedy=True)
    written = TransformersEngine(policy, seed=0, graphs=graphs).generate(asked, 1, greedy)
    same = 0
    for ids, (sample,) in zip(asked, written, strict=True):
        with torch.inference_mode():
            told = policy.model.generate(
                torch.tensor([ids], device=policy.device),
                do_sample=False,
                max_new_tokens=GREEDY_TOKENS,
                pad_token_id=policy.pad_id,
            )
        same += told[0, len(ids) :].tolist() == list(sample.tokens.ids)
    return round(same / len(asked), 2)
