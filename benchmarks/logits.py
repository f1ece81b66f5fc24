"""Peak memory and time of an update whose logits are computed in parts, against all at once.

One update of a randomly initialised model on random completions, each way in a process of its own,
one after the other. ``peak`` is what the largest resident set of the process rose by in the update,
gradients included; ``gradient_gap`` is the largest difference between the two gradients over the
largest number in them. Run it as ``python benchmarks/logits.py [--words 32000] [--tokens 512]``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from large_models import peak
from options import parser
from output import show

from node import threads

NEVER = 1 << 60
PROMPT = 16


def policy_of(options: argparse.Namespace) -> Any:
    """A small decoder behind a large vocabulary."""
    import torch
    from large_models import tokenizer_of
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from node.policy.policy import Policy

    tokenizer = tokenizer_of(options.words)
    config = Qwen2Config(
        vocab_size=options.words,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=2,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        max_position_embeddings=PROMPT + options.tokens,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return Policy(Qwen2ForCausalLM(config), tokenizer, "random")


def groups_of(options: argparse.Namespace) -> list[Any]:
    """Groups of random text, half of it right."""
    from node.learner.batches import TrainingCompletion, TrainingGroup

    draw, length = random.Random(0), options.tokens

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(options.words) for _ in range(count))

    def done() -> TrainingCompletion:
        return TrainingCompletion(ids(length), (True,) * length)

    n = options.completions
    rewards = tuple(float(i % 3 == 0) for i in range(n))
    return [
        TrainingGroup(ids(PROMPT), tuple(done() for _ in range(n)), rewards, local=True)
        for _ in range(options.prompts)
    ]


def update(options: argparse.Namespace) -> dict[str, Any]:
    """One update, whose gradient is left in the folder."""
    import torch

    from node.config.learning import LearnerSection
    from node.learner import logprobs
    from node.learner.learner import Learner

    if options.side == "whole":
        logprobs.WHOLE_BYTES = NEVER
    policy, groups = policy_of(options), groups_of(options)
    settings = LearnerSection(gradient_checkpointing=True, groups_per_step=0, max_grad_norm=1e9)
    learner = Learner(policy, settings)
    weights = list(policy.model.parameters())
    learner.optimizer.step = lambda: torch.save(  # type: ignore[method-assign]
        [weight.grad for weight in weights], options.folder / options.side
    )
    before, begin = psutil.Process().memory_info().rss / (1 << 20), time.perf_counter()
    stats = learner.update(groups)
    seconds, mib = time.perf_counter() - begin, peak() - before
    return {"s": round(seconds, 1), "peak_mib": round(mib), "loss": stats.loss}


def gap(folder: Path) -> float:
    """The largest difference of the two gradients, over their largest number."""
    import torch

    parts, whole = (torch.load(folder / side, weights_only=True) for side in ("parts", "whole"))
    largest = max(float(each.abs().max()) for each in whole)
    off = max(float((a - b).abs().max()) for a, b in zip(parts, whole, strict=True))
    return off / largest


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(tokens=512)
    arguments.add_argument("--words", type=int, default=32_000, help="in the vocabulary")
    arguments.add_argument("--hidden", type=int, default=128, help="width of the model")
    arguments.add_argument("--side", choices=("parts", "whole"), help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    threads.choose(options.threads)
    if options.side:
        print(json.dumps(update(options)))
        return
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for side in ("parts", "whole"):
            command = [sys.executable, *sys.argv, "--side", side, "--folder", folder]
            run = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
            told = json.loads(run.stdout.splitlines()[-1])
            result |= {f"{side}_{name}": value for name, value in told.items()}
        result["gradient_gap"] = gap(Path(folder))
    result["peak"] = round(result["parts_peak_mib"] / result["whole_peak_mib"], 2)
    result["time"] = round(result["parts_s"] / result["whole_s"], 2)
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
