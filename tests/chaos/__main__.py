"""``python -m tests.chaos run``, ``soak`` and ``split``; exit 1 on any violation."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from rich.console import Console

from node.tasks.verifier.verifier import Verifier
from protocol.manifest import open_manifest
from tests.chaos import world
from tests.chaos.checks import Result, all_results
from tests.chaos.crew import PAUSE_SECONDS, ROOT
from tests.chaos.director import Director
from tests.chaos.evidence import Evidence
from tests.chaos.flat import flat
from tests.chaos.gather import Gatherer
from tests.chaos.plan import dose_of, draw
from tests.chaos.report import keep, show, summary
from tests.chaos.soak import soak
from tests.chaos.split import split
from tests.chaos.swarm_parts import Crowd, crowd, rounds

RESULTS = ROOT / "benchmarks" / "results"
PATIENCE = 600.0
"""Seconds for nodes to come back after the last event, and again for them to stop."""


def main() -> int:
    """Parse, go into namespaces of our own, and do what was asked."""
    options = arguments()
    world.enter(sys.argv[1:])
    sys.stdout.reconfigure(line_buffering=True)  # so that a log tells how far a run has come
    if options.folder.exists():
        shutil.rmtree(options.folder)
    options.folder.mkdir(parents=True)
    if options.command == "run":
        return chaos(options)
    told = RESULTS / f"{options.command}.json"
    return soak(options, told) if options.command == "soak" else split(options, told)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, minutes, nodes in (("run", 20.0, 8), ("soak", 120.0, 4), ("split", 1.0, 4)):
        command = commands.add_parser(name)
        command.add_argument("--minutes", type=float, default=minutes)
        command.add_argument("--nodes", type=int, default=nodes)
        command.add_argument("--seed", type=int, default=0, help="of every event")
        command.add_argument("--folder", type=Path, default=ROOT / f"{name}-chaos")
        command.add_argument("--keep", action="store_true", help=f"the result, under {RESULTS}")
    return parser.parse_args()


def chaos(options: argparse.Namespace) -> int:
    """Hurt a swarm and check what it wrote; 1 where anything is violated."""
    console = Console()
    seconds = 60.0 * options.minutes
    events = draw(
        options.seed, seconds, options.nodes, dose_of(seconds, options.nodes), disk_node=0
    )
    evidence = Evidence(options.folder / "evidence.sqlite")
    scene = world.World(options.folder)
    pause = PAUSE_SECONDS * options.nodes

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    try:
        with crowd(scene, options.folder, options.nodes, hurt=True, pause=pause) as swarm:
            for node, author in zip(swarm.nodes, swarm.authors, strict=True):
                evidence.add("nodes", (node.name, author, node.side))
            gatherer = Gatherer(evidence, swarm.nodes, swarm.roots, scene.whole)
            director = Director(scene, swarm.nodes, swarm.authors, evidence, say)
            try:
                director.run(events, seconds)
                director.finish(PATIENCE)
            finally:
                gatherer.close()
            gatherer.last_harvest()
            settings = {"seed": options.seed, "minutes": options.minutes, "nodes": options.nodes}
            results = judged(evidence, swarm)
    finally:
        scene.close()
    told = summary(evidence, results, settings)
    show(told, results, console)
    if options.keep:
        keep(told, RESULTS / "chaos.json")
    return 1 if told["violations"] else 0


def judged(evidence: Evidence, swarm: Crowd) -> list[Result]:
    """All invariants, with a verifier that no node has touched."""
    heard = Result("seed and listeners ran to the end")
    heard.expect(swarm.seed.status is None, lambda: f"the seed: {swarm.seed.last_words}")
    for listener in swarm.listeners:
        runs = listener.process.poll() is None
        heard.expect(runs, lambda of=listener: f"see {of.folder / 'output.log'}")
        evidence.merge(listener.folder / "heard.sqlite")
    records = {node.name: rounds(node) for node in swarm.nodes}
    with Verifier(open_manifest(swarm.signed).catalogue, outside=False) as judge:
        judge.start()
        checked = all_results(evidence, swarm.signed, judge, records)
        return [heard, *checked, *flat(evidence)]


if __name__ == "__main__":
    sys.exit(main())
