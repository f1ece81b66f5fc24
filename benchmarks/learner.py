"""Tokens a second of a learner's update, against the least that training on them can cost.

``learner_over_bare`` compares whole updates, advantages, layout, corrections, clipping and
statistics included, with forward, backward and AdamW on the same tensors in the same layout. All
groups have a signal; every other one is an external one, and the corrections are those of a node
under ``schedule.mode = "async"``, which computes the most. Tokens are those trained on.

``padded_over_layout`` is the time of that bare training with a padded row for every completion,
prompt included, over its time in the layout that the learner chose: 1 where it chose padded rows.
``padded_over_packed`` is the same for groups that share their prompts whatever that costs, so that
a choice that was wrong shows. ``masked_over_layout`` is the same without unpacking, so that shared
rows have a mask.

All five take turns. Run it as ``python benchmarks/learner.py [--model tiny] [--tokens 4]
[--prompt-tokens 64] [--completions 8] [--json]``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from options import parser
from output import show

from node import threads

WARM_UP = 2
RATE = 1e-6
"""Of learning: of no consequence for the time, and the tokens stay what the policy writes."""


def groups_of(policy: Any, options: argparse.Namespace) -> list[Any]:
    """Groups that the policy has just written, each with rewards that differ."""
    from layouts import training_groups

    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    length = options.prompt_tokens
    text = policy.encode_prompt(" ".join(str(n) for n in range(10, 90))) * length
    prompts = [text[n : n + length] for n in range(options.prompts)]
    sampling = Sampling(max_new_tokens=options.tokens)
    samples = TransformersEngine(policy, seed=0).generate(prompts, options.completions, sampling)
    return training_groups(prompts, samples, [n % 2 == 0 for n in range(options.prompts)])


def contenders(options: argparse.Namespace) -> tuple[dict[str, Callable[[], Any]], dict[str, int]]:
    """The update and the four bare trainings; and how many rows the learner laid out."""
    from bare import BareTrainer
    from layouts import packed, padded, rows_of
    from policies import endless_policy

    from node.config.learning import LearnerSection
    from node.learner.learner import Learner

    policy = endless_policy(options.model, tokens=options.prompt_tokens + options.tokens)
    groups = groups_of(policy, options)
    config = LearnerSection(lr=RATE)
    learner = Learner(policy, config, correction="tapered", decoupled=True)
    rows, budget, bare = rows_of(groups), config.micro_batch_tokens, BareTrainer(policy.model)
    chosen = learner.batches(rows)
    learner.sharing = replace(sharing := learner.sharing, unpacking=math.inf)
    layouts = {
        "layout": chosen,
        "masked": learner.batches(rows),
        "padded": padded(rows, policy, budget),
        "packed": packed(rows, policy, budget),
    }
    learner.sharing = sharing
    works: dict[str, Callable[[], Any]] = {"learner": lambda: learner.update(groups)}
    for name, batches in layouts.items():
        works[name] = lambda batches=batches: bare.step(batches)
    shape = {
        "micro_batches": len(layouts["layout"]),
        "rows": sum(len(batch.input_ids) for batch in layouts["layout"]),
    }
    return works, shape


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--prompt-tokens", type=int, default=16, help="in each prompt")
    arguments.add_argument("--updates", type=int, default=4, help="in a row, each turn")
    options = arguments.parse_args()
    threads.choose(options.threads)
    from bare import seconds

    works, shape = contenders(options)
    turns = []
    for _ in range(WARM_UP + options.turns):
        turn = dict.fromkeys(works, 0.0)
        for _ in range(options.updates):
            for name, work in works.items():
                turn[name] += seconds(work) / options.updates
        turns.append(turn)
    turns = turns[WARM_UP:]
    completions = options.prompts * options.completions
    tokens = completions * options.tokens
    result = {
        "model": options.model,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
        "completions": completions,
        **shape,
        "learner_tokens_per_s": round(tokens / median(t["learner"] for t in turns)),
        "bare_tokens_per_s": round(tokens / median(t["layout"] for t in turns)),
        "learner_over_bare": round(median(t["layout"] / t["learner"] for t in turns), 2),
        "padded_over_layout": round(median(t["padded"] / t["layout"] for t in turns), 2),
        "masked_over_layout": round(median(t["masked"] / t["layout"] for t in turns), 2),
        "padded_over_packed": round(median(t["padded"] / t["packed"] for t in turns), 2),
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
