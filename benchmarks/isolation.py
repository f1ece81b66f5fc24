"""What it costs to score in an isolated process instead of this one.

Scores the same ordinary completions of the tiny task set in both, in turn, and prints the ratio
of the times, the median of several runs; and how long a worker takes to start. The isolated process
is asked in two ways: for the groups of a round together, as a node asks once they are all written,
and for one group a call, as it asks where they are scored while others are written.

    python benchmarks/isolation.py --completions 10000 --runs 5
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from node.tasks.sandbox.sandbox import sandbox_support
from node.tasks.scorer import score, verify_all
from node.tasks.task import kept
from node.tasks.task_set import Allowed, load_task_set, open_envs
from node.tasks.verifier.verifier import Verifier
from swarm.groups import TaskRef
from swarm.verification import Submission

GROUP = 8
CHUNK = 16
"""Rounds between two turns."""
Group = tuple[str, int, int, list[str]]


def groups(completions: int, rng: random.Random) -> list[Group]:
    """Tasks in turn over all levels, each with right and wrong answers."""
    sources = open_envs(load_task_set("tiny"), Allowed())[0]
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


def compare(verifier: Verifier, work: Sequence[Group], round_groups: int) -> dict[str, Spent]:
    """What scoring takes here, and isolated by rounds and by groups, in chunks that take turns."""
    sources = open_envs(load_task_set("tiny"), Allowed())[0]
    below = psutil.Process().children(recursive=True)
    rewards: dict[str, list[Sequence[float]]] = {}

    def here(chunk: Sequence[Group]) -> list[Sequence[float]]:
        found = []
        for env, level, seed, texts in chunk:
            with kept():
                task = sources[env].build(level, seed)
                found.append(score(sources[env], task, texts).rewards)
        return found

    def by_rounds(chunk: Sequence[Group]) -> list[Sequence[float]]:
        found: list[Sequence[float]] = []
        for begin in range(0, len(chunk), round_groups):
            asked = [
                Submission(TaskRef(*task), texts)
                for *task, texts in chunk[begin : begin + round_groups]
            ]
            found += [verified.rewards for verified in verify_all(verifier, asked)]
        return found

    def by_groups(chunk: Sequence[Group]) -> list[Sequence[float]]:
        return [verifier.verify(TaskRef(*task), texts).rewards for *task, texts in chunk]

    ways = {"here": here, "by_rounds": by_rounds, "by_groups": by_groups}
    spent = {name: Spent() for name in ways}
    for number, begin in enumerate(range(0, len(work), CHUNK * round_groups)):
        chunk = work[begin : begin + CHUNK * round_groups]
        # Each goes first as often as the others.
        for name in [*ways][number % 3 :] + [*ways][: number % 3]:
            rewards[name] = measure(spent[name], ways[name], chunk, below)
        same = [[tuple(each) for each in found] for found in rewards.values()]
        assert same[0] == same[1] == same[2], "isolated verdicts differ from those here"
    return spent


def measure(
    spent: Spent,
    way: Callable[[Sequence[Group]], list[Sequence[float]]],
    chunk: Sequence[Group],
    below: Sequence[psutil.Process],
) -> list[Sequence[float]]:
    processors = busy(below)
    clock = time.perf_counter()
    found = way(chunk)
    spent.clock += time.perf_counter() - clock
    spent.processors += busy(below) - processors
    return found


def busy(below: Sequence[psutil.Process]) -> float:
    """Processor seconds of this process and of those below it, so far (Linux)."""
    # In nanoseconds; what psutil reads are hundredths of a second, as long as a turn takes.
    each = [Path(f"/proc/{child.pid}/schedstat").read_text().split()[0] for child in below]
    return time.process_time() + sum(map(int, each)) / 1e9


def ratios(runs: Sequence[dict[str, Spent]], way: str) -> dict[str, float]:
    """Isolated by what it takes here, the median of the runs."""
    clock = [run[way].clock / run["here"].clock for run in runs]
    processors = [run[way].processors / run["here"].processors for run in runs]
    return {
        "clock": round(statistics.median(clock), 3),
        "processors": round(statistics.median(processors), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--completions", type=int, default=10_000)
    parser.add_argument("--round-groups", type=int, default=8, help="8 in a node alone")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--as-node",
        action="store_true",
        help="with numpy's generator beside this process, as a node has; to put it back costs time",
    )
    options = parser.parse_args()
    if options.as_node:
        importlib.import_module("numpy.random")
    work = groups(options.completions, random.Random(0))
    runs, starts = [], []
    for _ in range(options.runs):
        with Verifier(load_task_set("tiny"), outside=False) as verifier:
            begin = time.perf_counter()
            verifier.start()
            starts.append(time.perf_counter() - begin)
            runs.append(compare(verifier, work, options.round_groups))
    print(
        json.dumps(
            {
                "walls": str(sandbox_support()),
                "user": os.getuid(),
                "load": round(os.getloadavg()[0], 1),
                "completions": options.completions,
                "numpy_here": "numpy.random" in sys.modules,
                "processor_microseconds_a_group_here": [
                    round(run["here"].processors * 1e6 / len(work)) for run in runs
                ],
                **{way: ratios(runs, way) for way in ("by_rounds", "by_groups")},
                "start_seconds": round(statistics.median(starts), 2),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
