"""Tokens a second of the embedded engine against ``transformers.generate``.

Same model, same prompts, same number of sampled tokens, log-probs taken by both, one after the
other in turns; the ratio is the median over the turns. Run it as
``python benchmarks/engine.py [--model tiny] [--json]``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from options import arguments
from output import show

from node import threads


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def contenders(options: argparse.Namespace) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """``transformers.generate`` and the engine, on one policy that never stops by itself."""
    import torch

    from node.config.learning import PolicySection
    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine
    from node.policy.policy import Policy

    policy = Policy.load(PolicySection(model=options.model, device="cpu"))
    policy.stop_ids = (-1,)
    settings = policy.model.generation_config
    settings.eos_token_id, settings.pad_token_id = None, policy.pad_id
    prompts = [policy.encode_prompt(f"{n} + {n + 1} = ")[:16] for n in range(options.prompts)]
    width = max(map(len, prompts))
    pads = [width - len(prompt) for prompt in prompts]
    ids = torch.tensor(
        [[policy.pad_id] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
    )
    mask = (torch.arange(width) >= torch.tensor(pads)[:, None]).long()
    repeated = (each.repeat_interleave(options.completions, 0) for each in (ids, mask))
    input_ids, attention_mask = repeated

    @torch.inference_mode()
    def reference() -> torch.Tensor:
        output = policy.model.generate(
            input_ids,
            attention_mask=attention_mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=options.tokens,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logprobs = torch.stack(output.logits, 1).float().log_softmax(-1)
        return logprobs.gather(-1, output.sequences[:, width:, None])

    engine = TransformersEngine(policy, seed=0)
    sampling = Sampling(max_new_tokens=options.tokens)
    assert reference().shape[1] == options.tokens
    return reference, lambda: engine.generate(prompts, options.completions, sampling)


def main() -> None:
    options = arguments(__doc__)
    threads.choose(options.threads)
    reference, engine = contenders(options)
    engine()
    turns = [(seconds(reference), seconds(engine)) for _ in range(options.turns)]
    tokens = options.prompts * options.completions * options.tokens
    result = {
        "model": options.model,
        "rows": options.prompts * options.completions,
        "tokens": options.tokens,
        "threads": options.threads,
        "generate_tokens_per_s": round(tokens / median(slow for slow, _ in turns)),
        "engine_tokens_per_s": round(tokens / median(fast for _, fast in turns)),
        "ratio": round(median(slow / fast for slow, fast in turns), 2),
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
