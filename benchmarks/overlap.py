"""How long a step takes where generation overlaps with learning, against the longer of the two.

A step of the ``async`` schedule should last as long as generating alone or learning alone,
whichever takes longer: ``step_over_longest`` is 1 then. Engine and learner have a CPU thread each.
The parts are timed in turns with the steps, on the same work, while the other stands still. Run it
as ``python benchmarks/overlap.py [--model tiny] [--json]``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any

from options import arguments
from output import show

from node import threads

WARM_UP = 1
STEPS = 4
"""In a row, each turn."""


def measure(options: argparse.Namespace, stack: ExitStack) -> list[dict[str, float]]:
    """Seconds of a step and of its parts, one row a turn."""
    from node_step import async_step

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    node = stack.enter_context(async_step(options, folder, max_staleness=1))
    turns = [turn(node) for _ in range(WARM_UP + options.turns)]
    return turns[WARM_UP:]


def turn(node: Any) -> dict[str, float]:
    """One turn: some steps in a row, then each part alone."""
    node.whole()  # fills the window
    step = fmean(node.whole() for _ in range(STEPS))
    node.drain()
    return {"step": step, "generate": node.bare_sampling(), "learn": node.bare_update()}


def summary(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    """Medians over the turns; the ratios are taken within each turn."""
    medians = {f"{name}_s": round(median(t[name] for t in turns), 4) for name in turns[0]}
    longest = [t["step"] / max(t["generate"], t["learn"]) for t in turns]
    sums = [(t["generate"] + t["learn"]) / t["step"] for t in turns]
    return medians | {
        "step_over_longest": round(median(longest), 2),
        "alternate_over_step": round(median(sums), 2),
    }


def main() -> None:
    options = arguments(__doc__)
    threads.choose(options.threads)
    with ExitStack() as stack:
        result = summary(measure(options, stack))
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
