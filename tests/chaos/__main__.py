"""``python -m tests.chaos run``, ``soak`` and ``split``; exit 1 on any violation."""

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from node.tasks.verifier.verifier import Verifier
from protocol.manifest import open_manifest
from tests.chaos.checks import Result, all_results, flat, heals_in_time, slope
from tests.chaos.crew import PAUSE_SECONDS, ROOT, Crowd, crowd, rounds
from tests.chaos.director import LOOK_SECONDS, Director, Healing
from tests.chaos.evidence import Evidence, Gatherer
from tests.chaos.plan import draw
from tests.chaos.world import World, enter

RESULTS = ROOT / "benchmarks" / "results"
PATIENCE = 600.0
"""Seconds for nodes to return after the last event, and again for them to stop."""
MEETING_SECONDS = 300.0
"""Seconds for every node to receive groups from the other side before the cut."""
SHOWN = 12
"""Maximum printed violations per invariant."""
WARM_UP_SHARE, LONGEST_WARM_UP = 0.25, 600.0
"""Fraction of the run, and maximum seconds, in which caches and buffers fill."""
BOUNDS = {"memory": 24.0, "fds": 4.0, "sockets": 4.0, "threads": 2.0, "folder": 16.0}
"""Growth per hour that counts as flat, for one node with its children.
In MiB, counts, and MiB of its run folder without metrics.jsonl."""
LEAST = {"memory": 16.0, "fds": 4.0, "sockets": 4.0, "threads": 3.0, "folder": 4.0}
"""Growth over the observed time that a short run cannot tell from filling caches.
The units are the same. After two hours the bounds above are stricter."""
LARGEST_RECORD = 4096.0
"""Maximum bytes of metrics.jsonl per round."""


def summary(evidence: Evidence, results: Sequence[Result], settings: dict[str, Any]) -> dict:
    events: dict[str, Counter[str]] = {}
    for kind, outcome in evidence.rows("SELECT kind, outcome FROM events"):
        events.setdefault(kind, Counter())[outcome] += 1
    heals = [row[0] for row in evidence.rows("SELECT seconds FROM heals")]
    ends = Counter(row[0] for row in evidence.rows("SELECT how FROM lives"))
    return {
        **settings,
        "events": {kind: dict(sorted(n.items())) for kind, n in sorted(events.items())},
        "ends": dict(sorted(ends.items())),
        "heal_seconds": [None if s is None else round(s, 1) for s in heals],
        "not_seen": unseen(events, results),
        "invariants": {r.name: [r.checked, len(r.violations)] for r in results},
        "violations": sum(len(r.violations) for r in results),
    }


def unseen(events: Mapping[str, Mapping[str, int]], results: Sequence[Result]) -> list[str]:
    """List what this run did not cover.
    These are kinds of events that hit no node, with outcomes, and invariants never checked."""
    missed = [
        f"{kind} ({', '.join(sorted(outcomes))})"
        for kind, outcomes in sorted(events.items())
        if not outcomes.get("done")
    ]
    return [*missed, *(result.name for result in results if not result.checked)]


def show(told: dict[str, Any], results: Sequence[Result], console: Console) -> None:
    events = Table("event", "outcome", "times", box=SIMPLE_HEAD)
    for kind, outcomes in told["events"].items():
        for outcome, times in outcomes.items():
            events.add_row(kind, outcome, str(times))
    console.print(events)
    invariants = Table("invariant", "checked", "violations", box=SIMPLE_HEAD)
    for result in results:
        figures = (result.name, str(result.checked), str(len(result.violations)))
        invariants.add_row(*figures, style="red" if result.violations else "")
    console.print(invariants)
    for result in results:
        for line in result.violations[:SHOWN]:
            console.print(f"VIOLATED  {result.name}: {line}", soft_wrap=True, markup=False)
    for line in told["not_seen"]:
        console.print(f"NOT SEEN  {line}", style="bold yellow", soft_wrap=True, markup=False)


def concluded(options: argparse.Namespace, told: dict[str, Any], results: Sequence[Result]) -> int:
    """Print the result of a run; with ``--keep``, replace the saved result."""
    show(told, results, Console())
    if options.keep:
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = "chaos" if options.command == "run" else options.command
        (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    return 1 if told["violations"] else 0


def soak(options: argparse.Namespace) -> int:
    """Run a swarm at the demo's speed; return 1 if a resource grows."""
    evidence = Evidence(options.folder / "evidence.sqlite")
    alive = Result("every node runs to the end")
    with (
        closing(World(options.folder)) as scene,
        crowd(scene, options.folder, options.nodes, hurt=False, pause=0.0) as swarm,
    ):
        with closing(Gatherer(evidence, swarm.nodes, swarm.roots, scene.whole)):
            end = time.monotonic() + 60.0 * options.minutes
            while time.monotonic() < end and all(n.status is None for n in swarm.nodes):
                time.sleep(1.0)
        for node in swarm.nodes:
            alive.expect(node.status is None, f"{node.name}: {node.last_words}")
    record = Result(f"a round leaves a record of at most {LARGEST_RECORD:g} bytes")
    for node in swarm.nodes:
        size = (node.run_folder / "metrics.jsonl").stat().st_size / len(rounds(node))
        record.expect(size <= LARGEST_RECORD, f"{node.name}: {size:.0f}")
    results = [alive, record, *grown(evidence)]
    settings = {
        "minutes": options.minutes,
        "nodes": options.nodes,
        "rounds": {node.name: len(rounds(node)) for node in swarm.nodes},
        "largest": {
            figure: round(evidence.rows(f"SELECT max({figure}) FROM samples")[0][0] or 0.0, 1)
            for figure in BOUNDS
        },
    }
    rates = {f: {n: rate for n, (rate, _) in each.items()} for f, each in growth(evidence).items()}
    told = summary(evidence, results, settings) | {"growth_per_hour": rates}
    return concluded(options, told, results)


def growth(evidence: Evidence) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the robust slope per hour and the hours observed after warm-up, per node."""
    found: dict[str, dict[str, tuple[float, float]]] = {figure: {} for figure in BOUNDS}
    query = "SELECT node, min(at), max(at) FROM samples GROUP BY node"
    for node, first, last in evidence.rows(query):
        begin = first + min(LONGEST_WARM_UP, WARM_UP_SHARE * (last - first))
        for figure, nodes in found.items():
            query = f"SELECT at, {figure} FROM samples WHERE node=? AND at>=?"
            rate = 3600.0 * slope(*zip(*evidence.rows(query, (node, begin)), strict=True))
            nodes[node] = round(rate, 2), round((last - begin) / 3600.0, 3)
    return found


def grown(evidence: Evidence) -> list[Result]:
    results = []
    for figure, nodes in growth(evidence).items():
        result = Result(f"{figure} grows by at most {BOUNDS[figure]:g} an hour")
        for node, (rate, hours) in nodes.items():
            exceeds = rate > BOUNDS[figure] and rate * hours > LEAST[figure]
            told = f"{node}: {figure} {rate:+.1f} an hour over {hours:.2f} hours"
            result.expect(not exceeds, told)
        if not nodes:
            result.expect(False, "nothing was sampled: run it for longer")
        results.append(result)
    return results


def split(options: argparse.Namespace) -> int:
    """Kill the bootstrap node, cut and heal the network; return 1 on a violation."""
    scene, say = World(options.folder), Console().print
    if not scene.whole:
        say("a network cannot be cut without namespaces")
        return 1
    evidence = Evidence(options.folder / "evidence.sqlite")
    with (
        closing(scene),
        crowd(scene, options.folder, options.nodes, hurt=False, pause=0.3) as swarm,
    ):
        healing = _met(swarm, evidence, say)
        swarm.seed.kill()
        healing.cut()
        scene.cut()
        say(f"the seed is dead, and the network cut for {60.0 * options.minutes:.0f} s")
        time.sleep(60.0 * options.minutes)
        scene.heal()
        watched = healing.healed()
        while healing.watching:
            time.sleep(LOOK_SECONDS)
            healing.look()
    everybody = Result("every node is there when the network is whole")
    everybody.expect(watched == options.nodes, f"{watched} of {options.nodes}")
    results = [everybody, heals_in_time(evidence, open_manifest(swarm.signed))]
    settings = {"minutes": options.minutes, "nodes": options.nodes}
    return concluded(options, summary(evidence, results, settings), results)


def _met(swarm: Crowd, evidence: Evidence, say: Callable[[str], None]) -> Healing:
    """Wait until every node has had groups from the other side, and time the waits."""
    healing = Healing(swarm.nodes, swarm.authors, evidence, lambda node: node.at_work, say)
    deadline = time.monotonic() + MEETING_SECONDS
    while len(healing.known) < len(swarm.nodes):
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {sorted(healing.known)} had groups from the other side")
        time.sleep(LOOK_SECONDS)
        healing.look()
    return healing


def main() -> int:
    """Parse the arguments, enter the run's own namespaces, and run the command."""
    options = arguments()
    enter(sys.argv[1:])
    sys.stdout.reconfigure(line_buffering=True)  # A log then shows the progress of the run.
    if options.folder.exists():
        shutil.rmtree(options.folder)
    options.folder.mkdir(parents=True)
    return {"run": chaos, "soak": soak, "split": split}[options.command](options)


def arguments() -> argparse.Namespace:
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
    """Run a swarm under faults and check its records; return 1 on any violation."""
    seconds, evidence = 60.0 * options.minutes, Evidence(options.folder / "evidence.sqlite")
    events = draw(options.seed, seconds, options.nodes, disk_node=0)
    say = partial(Console().print, highlight=False, soft_wrap=True, markup=False)
    pause = PAUSE_SECONDS * options.nodes
    with (
        closing(World(options.folder)) as scene,
        crowd(scene, options.folder, options.nodes, hurt=True, pause=pause) as swarm,
    ):
        for node, author in zip(swarm.nodes, swarm.authors, strict=True):
            evidence.add("nodes", (node.name, author, node.side))
        with closing(Gatherer(evidence, swarm.nodes, swarm.roots, scene.whole)) as gatherer:
            director = Director(scene, swarm.nodes, swarm.authors, evidence, say)
            director.run(events, seconds)
            director.finish(PATIENCE)
        gatherer.harvest(last=True)
        results = judged(evidence, swarm)
    settings = {"seed": options.seed, "minutes": options.minutes, "nodes": options.nodes}
    return concluded(options, summary(evidence, results, settings), results)


def judged(evidence: Evidence, swarm: Crowd) -> list[Result]:
    """Check all invariants with a verifier that no node has used."""
    heard = Result("seed and listeners ran to the end")
    heard.expect(swarm.seed.status is None, f"the seed: {swarm.seed.last_words}")
    for folder, process in swarm.listeners.items():
        heard.expect(process.poll() is None, f"see {folder / 'output.log'}")
        evidence.merge(folder / "heard.sqlite")
    records = {node.name: rounds(node) for node in swarm.nodes}
    with Verifier(open_manifest(swarm.signed).catalogue, outside=False) as verifier:
        verifier.start()
        checked = all_results(evidence, swarm.signed, verifier, records)
        return [heard, *checked, *flat(evidence)]


if __name__ == "__main__":
    sys.exit(main())
