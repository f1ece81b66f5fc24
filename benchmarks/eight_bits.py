"""Tokens a second of the embedded engine with weights in 8 bits against whole ones.

A model of random weights, the same prompts, as many tokens from both, in turns; ratios are medians
over the turns. Beside it what the learner makes of the difference: how far the log-probs of sampled
tokens are off its own, in nats, and how long the copy takes that comes with new weights. Run it as
``python benchmarks/eight_bits.py [--size 0.1] [--json]``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bare import seconds
from large_models import SHAPES, write_model
from output import show

from node import threads


def gap(policy: Any, prompts: Any, groups: Any) -> float:
    """Mean distance of the log-probs that were told from the whole policy's own, nats."""
    import torch

    distances = []
    with torch.inference_mode():
        for prompt, group in zip(prompts, groups, strict=True):
            for sample in group:
                ids = torch.tensor([*prompt, *sample.tokens.ids])
                logits = policy.model(ids[None]).logits[0, len(prompt) - 1 : -1].float()
                own = logits.log_softmax(-1).gather(-1, ids[len(prompt) :, None])[:, 0]
                distances.append((torch.tensor(sample.tokens.logprobs) - own).abs())
    return float(torch.cat(distances).mean())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--size", choices=SHAPES, default="0.1", help="billion parameters")
    arguments.add_argument("--words", type=int, default=32_000, help="in the vocabulary")
    arguments.add_argument("--prompts", type=int, default=8)
    arguments.add_argument("--completions", type=int, default=8)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    threads.choose(options.threads)

    from node_step import PROMPTS
    from policies import endless_policy

    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine
    from node.engines.transformers.fused_decoder import FusedDecoder

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_model(folder, options.size, options.words, "float32")
        policy = endless_policy(folder)
    sampling = Sampling(max_new_tokens=options.tokens)
    prompts = [
        policy.encode_prompt(text) for text in (PROMPTS * options.prompts)[: options.prompts]
    ]
    engines = [TransformersEngine(policy, seed=0, eight_bits=eight) for eight in (False, True)]

    def write(engine: Any) -> Any:
        return engine.generate(prompts, options.completions, sampling)

    gaps = [gap(policy, prompts, write(engine)) for engine in engines]
    turns = [
        tuple(seconds(lambda e=engine: write(e)) for engine in engines)
        for _ in range(options.turns)
    ]
    tokens = options.prompts * options.completions * options.tokens
    whole, rounded = (median(each) for each in zip(*turns, strict=True))
    show(
        {
            "size": options.size,
            "rows": options.prompts * options.completions,
            "tokens": options.tokens,
            "threads": options.threads,
            "whole_tokens_per_s": round(tokens / whole),
            "eight_bits_tokens_per_s": round(tokens / rounded),
            "ratio": round(median(slow / fast for slow, fast in turns), 2),
            "least": round(min(slow / fast for slow, fast in turns), 2),
            "most": round(max(slow / fast for slow, fast in turns), 2),
            "copy_s": round(
                median(
                    seconds(lambda: FusedDecoder(policy.model, options.tokens, eight_bits=True))
                    for _ in range(options.turns)
                ),
                2,
            ),
            "whole_gap_nats": round(gaps[0], 5),
            "eight_bits_gap_nats": round(gaps[1], 5),
        },
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
