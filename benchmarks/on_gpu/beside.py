"""Engines in a process of their own on the learner's GPU: speed, new weights, sleep."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

from on_gpu.machine import free_bytes, typical, wait
from on_gpu.models import FULL_BYTES, SHAPES, check_room, let_go, prompts, random_policy
from on_gpu.section import Row, Settings

GPU_SHARE = 0.35
"""Of the GPU's memory, for each vLLM: two of them and the policy are there at once."""
THREADS = 4


def transformers(settings: Settings) -> Iterator[Row]:
    """The engine ``transformers`` in a process of its own, as under the schedule ``async``."""
    yield from _engine(settings, "transformers", settings.sizes[0])
    policy = _policy(settings, settings.sizes[0])
    yield _in_flight(policy, "transformers", _asked(settings))


def vllm(settings: Settings) -> Iterator[Row]:
    """vLLM in a process of its own, against ``vllm.LLM`` in this one."""
    from vllm_engine import bare_vllm

    from node.engines.engine import Sampling
    from node.engines.kinds import ENVIRONMENT

    for name, value in {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, value)
    for size in settings.sizes[:2]:
        check_room(settings, SHAPES[size], FULL_BYTES)
        yield from _engine(settings, "vllm", size)
        policy, options = _policy(settings, size), _options(settings)
        asked, sampling = _asked(settings), Sampling(max_new_tokens=options.tokens)
        engine = _open(policy, "vllm")
        try:
            bare = bare_vllm(policy, asked, options)
            ours = partial(engine.generate, asked, options.completions, sampling)
            least, once = (typical(work, settings.device, 3) for work in (bare, ours))
        finally:
            engine.close()
        yield {"what": f"{size} billion, vllm / bare vLLM", "ratio": round(least / once, 2)}
        yield _in_flight(policy, "vllm", asked)
        del policy, bare
        let_go()


def several(settings: Settings) -> Iterator[Row]:
    """One engine on each of two GPUs, and one model split over both."""
    from node.engines.engine import Sampling

    size, options = settings.sizes[len(settings.sizes) // 2], _options(settings)
    sampling = Sampling(max_new_tokens=options.tokens)
    for key in ("data_parallel_size", "tensor_parallel_size"):
        policy = _policy(settings, size)
        engine = _open(policy, "vllm", **{key: 2})
        try:
            work = partial(engine.generate, _asked(settings), options.completions, sampling)
            once = typical(work, settings.device, 3)
        finally:
            engine.close()
        tokens = options.prompts * options.completions * options.tokens
        yield {"what": f"{size} billion, {key} = 2", "tokens_per_s": round(tokens / once)}


def _engine(settings: Settings, kind: str, size: str) -> Iterator[Row]:
    from vllm_engine import update_to_token

    from node.engines.engine import Sampling

    options = _options(settings)
    policy = _policy(settings, size)
    engine = _open(policy, kind)
    asked, sampling = _asked(settings), Sampling(max_new_tokens=options.tokens)
    try:
        once = typical(
            lambda: engine.generate(asked, options.completions, sampling), settings.device, 3
        )
        tokens = options.prompts * options.completions * options.tokens
        took = update_to_token(policy, engine, asked[0], 3)
        yield {
            "what": f"{size} billion, {kind}",
            "tokens_per_s": round(tokens / once),
            "new_weights_to_first_token_s": round(median(took), 3),
            **_rest(settings, engine, asked[0]),
        }
    finally:
        engine.close()


def _in_flight(policy: Any, kind: str, asked: list[list[int]]) -> Row:
    """New weights in the middle of completions: the longest that any of them waits for a token."""
    from vllm_engine import largest_gaps

    gaps = largest_gaps(policy, kind, asked, 3)
    return {"what": f"{kind}, new weights in flight", "largest_gap_s": round(median(gaps), 4)}


def _rest(settings: Settings, engine: Any, prompt: list[int]) -> Row:
    """What the engine gives back while it rests, and the time to its first token afterwards."""
    from node.engines.engine import Sampling

    if not settings.on_gpu:
        return {}
    wait(settings.device)
    before = free_bytes(settings.device)
    engine.sleep()
    freed = free_bytes(settings.device) - before
    once = typical(lambda: _woken(engine, prompt, Sampling(max_new_tokens=1)), settings.device, 1)
    return {"rest_gives_back_gb": round(freed / 1e9, 2), "woken_to_first_token_s": round(once, 3)}


def _woken(engine: Any, prompt: list[int], sampling: Any) -> None:
    engine.sleep()
    engine.generate([prompt], 1, sampling)


def _policy(settings: Settings, size: str) -> Any:
    """One without a token that ends anything, as vLLM takes none that it does not know."""
    policy = random_policy(settings, size)
    policy.stop_ids = ()
    return policy


def _open(policy: Any, kind: str, **keys: int) -> Any:
    """The engine that a node with these keys has beside its learner."""
    import torch

    from node.config.config import Config
    from node.engines.registry import open_streaming_engine
    from swarm.common.counters import Counters

    engine = {"backend": kind, "sleep_mode": True, "gpu_memory_utilization": GPU_SHARE, **keys}
    config = Config.with_overrides({f"engine.{name}": value for name, value in engine.items()})
    torch.set_num_threads(THREADS)
    return open_streaming_engine(config, policy, Counters())


def _asked(settings: Settings) -> list[list[int]]:
    return prompts(_options(settings).prompts, 16 if settings.smoke else 128)


def _options(settings: Settings) -> argparse.Namespace:
    if settings.smoke:
        return argparse.Namespace(prompts=1, completions=2, tokens=4)
    return argparse.Namespace(prompts=8, completions=8, tokens=128)
