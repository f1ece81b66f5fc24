"""A swarm that is left alone for hours, and whether anything of it grows."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tests.chaos.checks import Result
from tests.chaos.evidence import Evidence
from tests.chaos.gather import Gatherer
from tests.chaos.report import keep, show, summary
from tests.chaos.swarm_parts import crowd, rounds
from tests.chaos.trend import slope
from tests.chaos.world import World

WARM_UP_SHARE = 0.25
"""Of the run, at most ten minutes, in which caches and pools fill."""

LONGEST_WARM_UP = 600.0

BOUNDS = {"memory": 24.0, "fds": 4.0, "sockets": 4.0, "threads": 2.0, "folder": 16.0}
"""Growth an hour that still counts as flat, of one node with its children: MiB, numbers, and MiB of
its run folder without metrics.jsonl."""

LEAST = {"memory": 16.0, "fds": 4.0, "sockets": 4.0, "threads": 3.0, "folder": 4.0}
"""Growth over the time watched that a short run cannot tell from caches that still fill, in the
same units; after two hours the bounds above are the stricter ones."""

LARGEST_RECORD = 4096.0
"""Bytes of metrics.jsonl a round."""


def soak(options: argparse.Namespace, result_path: Path) -> int:
    """Run a swarm at the demo's speed; 1 where something grows."""
    console, scene = Console(), World(options.folder)
    evidence = Evidence(options.folder / "evidence.sqlite")
    try:
        with crowd(scene, options.folder, options.nodes, hurt=False, pause=0.0) as swarm:
            gatherer = Gatherer(evidence, swarm.nodes, swarm.roots, scene.whole)
            try:
                end = time.monotonic() + 60.0 * options.minutes
                while time.monotonic() < end and all(n.status is None for n in swarm.nodes):
                    time.sleep(1.0)
            finally:
                gatherer.close()
            alive = Result("every node runs to the end")
            for node in swarm.nodes:
                alive.expect(node.status is None, lambda n=node: f"{n.name}: {n.last_words}")
    finally:
        scene.close()
    record = Result(f"a round leaves a record of at most {LARGEST_RECORD:g} bytes")
    for node in swarm.nodes:
        size = (node.run_folder / "metrics.jsonl").stat().st_size / len(rounds(node))
        record.expect(size <= LARGEST_RECORD, lambda n=node, s=size: f"{n.name}: {s:.0f}")
    results = [alive, record, *grown(evidence)]
    settings = {
        "minutes": options.minutes,
        "nodes": options.nodes,
        "rounds": {node.name: len(rounds(node)) for node in swarm.nodes},
        "largest": largest(evidence),
    }
    rates = {f: {n: g.rate for n, g in nodes.items()} for f, nodes in growth(evidence).items()}
    told = summary(evidence, results, settings) | {"growth_per_hour": rates}
    show(told, results, console)
    if options.keep:
        keep(told, result_path)
    return 1 if told["violations"] else 0


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one figure of one node: robust slope an hour, and the hours watched after the warm-up."""

    rate: float
    hours: float

    def exceeds(self, figure: str) -> bool:
        """Whether it is more than what counts as flat."""
        return self.rate > BOUNDS[figure] and self.rate * self.hours > LEAST[figure]


def growth(evidence: Evidence) -> dict[str, dict[str, Growth]]:
    """By figure and node, after the warm-up."""
    found: dict[str, dict[str, Growth]] = {figure: {} for figure in BOUNDS}
    for node, first, last in evidence.rows(
        "SELECT node, min(at), max(at) FROM samples GROUP BY node"
    ):
        begin = first + min(LONGEST_WARM_UP, WARM_UP_SHARE * (last - first))
        for figure, nodes in found.items():
            query = f"SELECT at, {figure} FROM samples WHERE node=? AND at>=?"
            times, values = zip(*evidence.rows(query, (node, begin)), strict=True)
            rate = round(3600.0 * slope(times, values), 2)
            nodes[node] = Growth(rate, round((last - begin) / 3600.0, 3))
    return found


def largest(evidence: Evidence) -> dict[str, float]:
    """By figure: the most that any node held."""
    return {
        figure: round(evidence.rows(f"SELECT max({figure}) FROM samples")[0][0] or 0.0, 1)
        for figure in BOUNDS
    }


def grown(evidence: Evidence) -> list[Result]:
    """One result a figure; a node over its bound violates it."""
    results = []
    for figure, nodes in growth(evidence).items():
        result = Result(f"{figure} grows by at most {BOUNDS[figure]:g} an hour")
        for node, found in nodes.items():
            told = f"{node}: {figure} {found.rate:+.1f} an hour over {found.hours:.2f} hours"
            result.expect(not found.exceeds(figure), lambda t=told: t)
        if not nodes:
            result.expect(False, lambda: "nothing was sampled: run it for longer")
        results.append(result)
    return results
