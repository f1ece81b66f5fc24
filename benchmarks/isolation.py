"""What it costs to score in an isolated process instead of this one.

Scores the same ordinary completions of the tiny catalogue in both, group by group in turn, and
prints the ratio of the times, the median of several runs; and how long a worker takes to start.

    python benchmarks/isolation.py --completions 10000 --runs 5
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence

from node.tasks.catalogue import load_catalogue, open_catalogue
from node.tasks.sandbox.walls import find_walls
from node.tasks.scores import score
from node.tasks.verifier import Verifier

GROUP = 8
Group = tuple[str, int, int, list[str]]


def groups(completions: int, rng: random.Random) -> list[Group]:
    """Tasks in turn over all levels, each with right and wrong answers."""
    sources = open_catalogue(load_catalogue("tiny"), {})
    levels = [(name, level) for name, source in sources.items() for level in range(source.levels)]
    made = []
    for number in range(completions // GROUP):
        name, level = levels[number % len(levels)]
        seed = rng.getrandbits(63)
        right = str(sources[name].build(level, seed).entry["answer"])
        wrong = [f"{right}{rng.randrange(10)}" for _ in range(GROUP // 2)]
        made.append((name, level, seed, [right] * (GROUP - len(wrong)) + wrong))
    return made


def compare(verifier: Verifier, work: Sequence[Group]) -> tuple[float, float]:
    """Seconds in this process and in the isolated one, taken in turn."""
    sources = open_catalogue(load_catalogue("tiny"), {})
    here = there = 0.0
    for number, (env, level, seed, texts) in enumerate(work):

        def inside(env=env, level=level, seed=seed, texts=texts) -> None:
            score(sources[env], sources[env].build(level, seed), texts)

        def outside(env=env, level=level, seed=seed, texts=texts) -> None:
            verifier.judge(env, level, seed, texts)

        # Each goes first as often as the other.
        if number % 2:
            here += seconds(inside)
            there += seconds(outside)
        else:
            there += seconds(outside)
            here += seconds(inside)
    return here, there


def seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--completions", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    work = groups(options.completions, random.Random(0))
    runs, starts = [], []
    for _ in range(options.runs):
        with Verifier(load_catalogue("tiny"), outside=False) as verifier:
            starts.append(seconds(lambda verifier=verifier: verifier.start()))
            runs.append(compare(verifier, work))
    print(
        json.dumps(
            {
                "walls": str(find_walls()),
                "user": os.getuid(),
                "completions": options.completions,
                "seconds_here": [round(here, 2) for here, _ in runs],
                "seconds_isolated": [round(there, 2) for _, there in runs],
                "ratio": round(statistics.median(there / here for here, there in runs), 3),
                "start_seconds": round(statistics.median(starts), 2),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
