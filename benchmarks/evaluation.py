"""How long a held-out evaluation takes beside a round, with answers of a given length.

A round writes ``--prompts`` groups of ``--completions`` answers and learns from them; an evaluation
writes one answer to each of ``--tasks`` questions and learns nothing. Both as a node does them, in
turns, with a policy that never stops by itself. ``share_of_time`` is what evaluations take of a
node's time with the default ``schedule.eval_every``. Run it as
``python benchmarks/evaluation.py [--tokens 512] [--tasks 64] [--json]``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from bare import seconds
from options import parser
from output import show

from node import threads

WARM_UP = 1


def measure(options: argparse.Namespace, folder: Path) -> list[tuple[float, float]]:
    """Seconds of a round and of an evaluation behind it, for every turn."""
    from node_step import PROMPTS, NodeStep
    from policies import endless_policy

    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    policy = endless_policy(options.model, tokens=options.tokens + 64)
    questions = [policy.encode_prompt(PROMPTS[n % len(PROMPTS)]) for n in range(options.tasks)]
    engine, sampling = TransformersEngine(policy, seed=0), Sampling(max_new_tokens=options.tokens)
    with NodeStep(policy, folder, options.prompts, options.completions, options.tokens) as node:
        return [
            (node.whole(), seconds(lambda: engine.generate(questions, 1, sampling)))
            for _ in range(WARM_UP + options.turns)
        ][WARM_UP:]


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(prompts=4, turns=3, tokens=512)
    arguments.add_argument("--tasks", type=int, default=64, help="as schedule.eval_tasks")
    options = arguments.parse_args()
    threads.choose(options.threads)
    from node.config.sections import ScheduleSection

    with tempfile.TemporaryDirectory() as folder:
        turns = measure(options, Path(folder))
    over = median(evaluation / whole for whole, evaluation in turns)
    every = ScheduleSection().eval_every
    result = {
        "tokens": options.tokens,
        "answers_a_round": options.prompts * options.completions,
        "tasks": options.tasks,
        "round_s": round(median(whole for whole, _ in turns), 2),
        "evaluation_s": round(median(evaluation for _, evaluation in turns), 2),
        "evaluation_over_round": round(over, 2),
        "share_of_time": round(over / (over + every), 3),
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
