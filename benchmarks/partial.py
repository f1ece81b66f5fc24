"""What partial rollouts gain where few completions are long: completed tokens a second.

Lengths are drawn from a log-normal distribution, as those of reasoning models are spread, and cut
at a cap. One node waits for all groups of an update, as the ``sync`` schedule does; the other
begins more, takes as many as an update needs, and goes on with the rest. Both use the same engine
in a process with one CPU thread, take turns, and nothing is learned. Run it as
``python benchmarks/partial.py [--tokens 512] [--share 1.0] [--staleness 2] [--json]``.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from options import parser
from output import show

from node import threads

WARM_UP = 2
ROUNDS = 3
"""In a row, each turn."""
MEDIAN, SIGMA = 64.0, 1.0
"""Of the lengths in tokens, and of their logarithm."""


def measure(options: argparse.Namespace, stack: ExitStack) -> list[dict[str, float]]:
    """Tokens a second of both nodes, one row a turn."""
    from node_step import async_step

    schedules = {
        "waiting": {"max_staleness": 0, "oversample": 0.0},
        "partial": {"max_staleness": options.staleness, "oversample": options.share},
    }
    nodes: dict[str, Any] = {}
    for name, schedule in schedules.items():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes[name] = stack.enter_context(async_step(options, folder, **schedule))
        vary_lengths(nodes[name].engine)
    turns = []
    for _ in range(WARM_UP + options.turns):
        speeds = {}
        for name, node in nodes.items():
            rounds = [node.generated() for _ in range(ROUNDS)]
            speeds[name] = sum(n for n, _ in rounds) / sum(s for _, s in rounds)
        turns.append(speeds)
    return turns[WARM_UP:]


def vary_lengths(engine: Any) -> None:
    """End each trajectory at a length that its key determines, also after a pause."""
    from node.engines.engine import Sampling, SamplingRequest

    submit = engine.submit

    def capped(trajectories: Sequence[SamplingRequest], sampling: Sampling) -> None:
        for each in trajectories:
            length = int(random.Random(each.key).lognormvariate(0.0, SIGMA) * MEDIAN)
            submit([each], Sampling(max_new_tokens=max(1, min(sampling.max_new_tokens, length))))

    engine.submit = capped


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(tokens=512)
    arguments.add_argument("--share", type=float, default=1.0, help="as schedule.oversample")
    arguments.add_argument("--staleness", type=int, default=2, help="as schedule.max_staleness")
    options = arguments.parse_args()
    threads.choose(options.threads)
    with ExitStack() as stack:
        turns = measure(options, stack)
    result = {f"{name}_tokens_s": round(median(t[name] for t in turns)) for name in turns[0]}
    gain = median(t["partial"] / t["waiting"] for t in turns)
    result["partial_over_waiting"] = round(gain, 2)
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
