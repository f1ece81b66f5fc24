"""Tokens a second of the embedded engine against ``transformers.generate``.

Same model, same prompts, same number of sampled tokens, log-probs taken by both, one after the
other in turns; the ratio is the median over the turns. Run it as
``python benchmarks/engine.py [--model tiny] [--json]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

from bare import repeated, seconds
from options import arguments
from output import show

from node import threads


def contenders(options: argparse.Namespace) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """``transformers.generate`` and the engine, on one policy that never stops by itself."""
    import torch
    from policies import endless_policy

    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    policy = endless_policy(options.model)
    prompts = [policy.encode_prompt(f"{n} + {n + 1} = ")[:16] for n in range(options.prompts)]
    inputs = repeated(prompts, options.completions, policy.pad_id, policy.device)

    @torch.inference_mode()
    def reference() -> torch.Tensor:
        output = policy.model.generate(
            **inputs,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=options.tokens,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logprobs = torch.stack(output.logits, 1).float().log_softmax(-1)
        return logprobs.gather(-1, output.sequences[:, -options.tokens :, None])

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
