"""An update of local and peers' groups over one of as many local groups, in turns.

Both train on the same answers, which the policy has just written; only their author differs.
``time`` is the ratio of seconds, the median over turns, and ``one_by_one`` that of the same update
when every group is read by itself. ``default`` is that of an update as a node makes it: of peers'
better answers alone, bounded by a reference model that reads them first. ``peer_cost`` is the time
that a peer's group adds to that update, over the time to generate a local group and learn from it.
``bounded`` counts the peers' groups whose share of the gradient was bounded: each is read once
more. Run it as ``python benchmarks/peer_groups.py [--model DIR] [--own 2] [--prompts 6] [--tokens
48] [--threads 2]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from statistics import median
from typing import Any

from learner import groups_of
from options import parser
from output import show

from node import threads

WARM_UP = 1
RATE = 1e-6


def learners(options: argparse.Namespace) -> tuple[dict[str, Callable[[], Any]], int]:
    """The updates by name, and the tokens that each trains on."""
    from policies import endless_policy

    from node.config.learning import LearnerSection, MixtureSection
    from node.learner.learner import Learner
    from node.learner.reference import Reference

    policy = endless_policy(options.model, dtype=options.dtype)
    groups = groups_of(policy, options)
    local = [replace(group, local=True) for group in groups]
    mixed = local[: options.own] + [replace(g, local=False) for g in local[options.own :]]
    learner = Learner(policy, LearnerSection(lr=RATE), correction=options.correction)

    def one_by_one() -> Any:
        learner.rows_in_batch = lambda rows: 1
        try:
            return learner.update(mixed)
        finally:
            del learner.rows_in_batch

    mixture, read = MixtureSection(), LearnerSection().micro_batch_tokens
    reference = Reference(policy, deepcopy(policy.model), temperature=1.0, tokens=read)
    usual = Learner(
        policy,
        LearnerSection(lr=RATE),
        correction=mixture.correction,
        peer_ratio=mixture.peer_ratio,
    )
    works = {
        "default": lambda: usual.update(reference.read(mixed)),
        "mixed": lambda: learner.update(mixed),
        "local": lambda: learner.update(local),
        "one_by_one": one_by_one,
        "generate": lambda: groups_of(policy, options),
    }
    return works, sum(len(c.ids) for group in groups for c in group.completions)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--prompt-tokens", type=int, default=64, help="in each prompt")
    options.add_argument("--own", type=int, default=2, help="local groups of the mixed update")
    options.add_argument("--correction", default="tapered", help="as mixture.correction")
    options.add_argument("--dtype", default="float32", help="as policy.dtype")
    options.set_defaults(prompts=6, turns=5)
    options = options.parse_args()
    threads.choose(options.threads)
    from bare import seconds

    works, tokens = learners(options)
    turns = [
        {name: seconds(work) for name, work in works.items()}
        for _ in range(WARM_UP + options.turns)
    ]
    stats = works["mixed"]()
    turns = turns[WARM_UP:]

    def peer_cost(turn: dict[str, float]) -> float:
        learned = turn["local"] / options.prompts
        peer = (turn["default"] - options.own * learned) / (options.prompts - options.own)
        return peer / (turn["generate"] / options.prompts + learned)

    def ratio(name: str) -> float:
        return round(median(turn[name] / turn["local"] for turn in turns), 3)

    result = {
        "model": options.model,
        "groups": f"{options.own} local and {options.prompts - options.own} of peers",
        "tokens": tokens,
        "bounded": stats.groups_bounded,
        "local_s": round(median(turn["local"] for turn in turns), 3),
        "time": ratio("mixed"),
        "one_by_one": ratio("one_by_one"),
        "default": ratio("default"),
        "generate_s": round(median(turn["generate"] for turn in turns), 3),
        "peer_cost": round(median(map(peer_cost, turns)), 3),
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
