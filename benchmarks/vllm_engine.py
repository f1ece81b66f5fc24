"""What the process around vLLM costs, and what a weight update does.

Three figures, the first one a ratio of interleaved turns, on a policy that never stops by itself:

- tokens a second of the engine ``vllm`` against ``vllm.LLM`` on the same requests;
- from handing new weights over to the first token that was sampled under them;
- the largest gap between two tokens of requests on their way, an update among them.

The latter two also for the engine ``transformers`` in a process of its own. Run it in the
environment that ``make vllm`` makes: ``.venv-vllm/bin/python benchmarks/vllm_engine.py [--json]``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bare import seconds
from options import arguments
from output import show

from node.engines.kinds import ENVIRONMENT

UPDATE_AFTER = 32
"""Steps of the requests on their way when the update comes, and after it."""
GPU_SHARE = 0.35
"""Of a GPU's memory, where there is one, for each of two vLLMs beside the policy."""
OPTIONS = {"tensor_parallel_size": 1, "gpu_memory_utilization": GPU_SHARE, "sleeps": False}


def bare_vllm(policy: Any, prompts: list[list[int]], options: argparse.Namespace) -> Any:
    """``vllm.LLM`` on the policy's files; the same requests, log-probs included."""
    from vllm import LLM, SamplingParams

    folder = tempfile.mkdtemp()
    policy.save(Path(folder))
    on_cpu = policy.device.type == "cpu"
    room = {"kv_cache_memory_bytes": 1 << 28} if on_cpu else {"gpu_memory_utilization": GPU_SHARE}
    llm = LLM(
        folder,
        trust_remote_code=False,
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=dtype_of(policy),
        max_model_len=policy.context_length,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        **room,
    )
    sampling = SamplingParams(
        n=options.completions,
        max_tokens=options.tokens,
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
    )
    requests: list[Any] = [{"prompt_token_ids": ids} for ids in prompts]
    return lambda: llm.generate(requests, sampling, use_tqdm=False)


def dtype_of(policy: Any) -> str:
    return str(policy.model.dtype).removeprefix("torch.")


def process(policy: Any, kind: str, threads: int, **options: Any) -> Any:
    from node.config.config import Config
    from node.config.registry import ENGINES
    from node.engines.process.child import Starter
    from node.engines.process.engine import EngineProcess
    from swarm.common.counters import Counters

    starter = Starter(
        kind,
        seed=0,
        threads=threads,
        timeout=Config().engine.timeout,
        options={**OPTIONS, **options},
        as_checkpoint=ENGINES.load(kind).as_checkpoint,
    )
    return EngineProcess(policy, starter, Counters())


def update_to_token(policy: Any, engine: Any, prompt: list[int], turns: int) -> list[float]:
    """Seconds from handing the weights over to the first token under them."""
    from node.engines.engine import Sampling

    def work() -> None:
        policy.version += 1
        engine.update(policy)
        ((sample,),) = engine.generate([prompt], 1, Sampling(max_new_tokens=1))
        assert sample.tokens.versions == (policy.version,)

    work()
    return [seconds(work) for _ in range(turns)]


def largest_gaps(policy: Any, kind: str, prompts: list[list[int]], turns: int) -> list[float]:
    """For each turn, the longest step of requests on their way, in which an update may fall.

    Every step brings every request a token, and an update makes the next step read them anew.
    """
    from node.engines.engine import Backend, BackendSettings, Request
    from node.engines.process.worker import open_backend
    from node.engines.weight_snapshot import Snapshot

    snapshot = Snapshot(policy, as_checkpoint=kind == "vllm")
    backend: Backend = open_backend(
        BackendSettings(
            backend=kind,
            folder=str(snapshot.folder),
            dtype=dtype_of(policy),
            device=str(policy.device),
            stop_ids=(),
            context_length=policy.context_length,
            seed=0,
            max_rows=256,
            options=OPTIONS,
        )
    )

    def turn() -> float:
        jobs = [
            Request(n, tuple(ids), 2 * UPDATE_AFTER, 1.0, False) for n, ids in enumerate(prompts)
        ]
        backend.submit(jobs)
        backend.step()
        gaps = [seconds(backend.step) for _ in range(UPDATE_AFTER)]
        snapshot.write(policy)
        gaps.append(seconds(lambda: (backend.update(), backend.step())))
        while backend.busy:
            gaps.append(seconds(backend.step))
        return max(gaps)

    turn()
    gaps = [turn() for _ in range(turns)]
    snapshot.remove()
    return gaps


def milliseconds(values: list[float]) -> dict[str, float]:
    return {"median_ms": round(1e3 * median(values), 1), "most_ms": round(1e3 * max(values), 1)}


def main() -> None:
    options = arguments(__doc__)
    for name, value in {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, value)
    from node.threads import choose

    choose(options.threads)
    from policies import endless_policy

    from node.engines.engine import Sampling

    policy = endless_policy(options.model)
    prompts = [policy.encode_prompt(f"{n} + {n + 1} = ")[:16] for n in range(options.prompts)]
    sampling = Sampling(max_new_tokens=options.tokens)
    engines = {kind: process(policy, kind, options.threads) for kind in ("transformers", "vllm")}
    works: dict[str, Callable[[], Any]] = {
        kind: lambda engine=engine: engine.generate(prompts, options.completions, sampling)
        for kind, engine in engines.items()
    }
    works["bare"] = bare_vllm(policy, prompts, options)
    for work in works.values():
        work()
    rounds = [{name: seconds(w) for name, w in works.items()} for _ in range(options.turns)]
    tokens = options.prompts * options.completions * options.tokens
    result: dict[str, Any] = {
        "model": options.model,
        "rows": options.prompts * options.completions,
        "tokens": options.tokens,
        "tokens_per_s": {n: round(tokens / median(r[n] for r in rounds)) for n in works},
        "vllm_to_bare": round(median(r["bare"] / r["vllm"] for r in rounds), 2),
        "vllm_to_transformers": round(median(r["transformers"] / r["vllm"] for r in rounds), 2),
    }
    for kind, engine in engines.items():
        times = update_to_token(policy, engine, prompts[0], options.turns)
        result[f"update_to_token_{kind}"] = milliseconds(times)
        engine.close()
    for kind in engines:
        gaps = largest_gaps(policy, kind, prompts * 2, options.turns)
        result[f"largest_gap_{kind}"] = milliseconds(gaps)
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
