"""A swarm that is cut in two after its seed is gone for good, and whether the halves find together.

Nobody is left then whom both sides were told to dial: each has to find the other by addresses that
it remembers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from protocol.manifest import open_manifest
from tests.chaos.checks import Result, heals_in_time
from tests.chaos.evidence import Evidence
from tests.chaos.healing import LOOK_SECONDS, Healing
from tests.chaos.report import keep, show, summary
from tests.chaos.swarm_parts import Crowd, crowd
from tests.chaos.world import World

MEETING_SECONDS = 300.0
"""In which everybody has to have had groups from the other side before the cut."""


def split(options: argparse.Namespace, result_path: Path) -> int:
    """Kill the seed, cut, wait ``options.minutes``, mend, look; 1 where a half stays alone."""
    console, scene = Console(), World(options.folder)
    if not scene.whole:
        console.print("a network cannot be cut without namespaces")
        return 1
    evidence = Evidence(options.folder / "evidence.sqlite")
    say: Callable[[str], None] = console.print
    try:
        with crowd(scene, options.folder, options.nodes, hurt=False, pause=0.3) as swarm:
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
    finally:
        scene.close()
    everybody = Result("every node is there when the network is whole")
    everybody.expect(watched == options.nodes, lambda: f"{watched} of {options.nodes}")
    results = [everybody, heals_in_time(evidence, open_manifest(swarm.signed))]
    told = summary(evidence, results, {"minutes": options.minutes, "nodes": options.nodes})
    show(told, results, console)
    if options.keep:
        keep(told, result_path)
    return 1 if told["violations"] else 0


def _met(swarm: Crowd, evidence: Evidence, say: Callable[[str], None]) -> Healing:
    """Let everybody have groups from the other side, and know how long that takes them.

    Raises:
        TimeoutError: it did not come to that.
    """
    healing = Healing(swarm.nodes, swarm.authors, evidence, lambda node: node.at_work, say)
    deadline = time.monotonic() + MEETING_SECONDS
    while len(healing.known) < len(swarm.nodes):
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {sorted(healing.known)} had groups from the other side")
        time.sleep(LOOK_SECONDS)
        healing.look()
    return healing
