"""What it costs to score in an isolated process instead of this one.

Scores the same ordinary completions of the tiny catalogue in both, in turn, and prints the ratio
of the times, the median of several runs; and how long a worker takes to start.

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
from dataclasses import dataclass

import psutil

from node.tasks.catalogue import load_catalogue, open_catalogue
from node.tasks.sandbox.walls import find_walls
from node.tasks.scores import score
from node.tasks.verifier import Verifier

GROUP = 8
CHUNK = 125
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


@dataclass(slots=True)
class Spent:
    """Seconds on the clock, and of the processors' time in this process and its children."""

    clock: float = 0.0
    processors: float = 0.0


def compare(verifier: Verifier, work: Sequence[Group]) -> tuple[Spent, Spent]:
    """What scoring here and in the isolated process takes, in chunks that take turns."""
    sources = open_catalogue(load_catalogue("tiny"), {})
    here, there = Spent(), Spent()
    below = psutil.Process().children(recursive=True)

    def inside(chunk: Sequence[Group]) -> None:
        for env, level, seed, texts in chunk:
            score(sources[env], sources[env].build(level, seed), texts)

    def outside(chunk: Sequence[Group]) -> None:
        for env, level, seed, texts in chunk:
            verifier.judge(env, level, seed, texts)

    for begin in range(0, len(work), CHUNK):
        chunk = work[begin : begin + CHUNK]
        turns = [(here, inside), (there, outside)]
        # Each goes first as often as the other.
        for spent, way in turns if begin // CHUNK % 2 else reversed(turns):
            measure(spent, way, chunk, below)
    return here, there


def measure(
    spent: Spent,
    way: Callable[[Sequence[Group]], None],
    chunk: Sequence[Group],
    below: Sequence[psutil.Process],
) -> None:
    processors = busy(below)
    clock = time.perf_counter()
    way(chunk)
    spent.clock += time.perf_counter() - clock
    spent.processors += busy(below) - processors


def busy(below: Sequence[psutil.Process]) -> float:
    """Processor seconds of this process and of those below it, so far."""
    return time.process_time() + sum(sum(child.cpu_times()[:2]) for child in below)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--completions", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    work = groups(options.completions, random.Random(0))
    runs, starts = [], []
    for _ in range(options.runs):
        with Verifier(load_catalogue("tiny"), outside=False) as verifier:
            begin = time.perf_counter()
            verifier.start()
            starts.append(time.perf_counter() - begin)
            runs.append(compare(verifier, work))
    print(
        json.dumps(
            {
                "walls": str(find_walls()),
                "user": os.getuid(),
                "completions": options.completions,
                "seconds_here": [round(here.clock, 2) for here, _ in runs],
                "seconds_isolated": [round(there.clock, 2) for _, there in runs],
                "ratio": round(statistics.median(b.clock / a.clock for a, b in runs), 3),
                "ratio_of_processor_time": round(
                    statistics.median(b.processors / a.processors for a, b in runs), 3
                ),
                "start_seconds": round(statistics.median(starts), 2),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
