"""Whether ``async`` learns more than ``sync`` in the same time, with the same cores.

A pair is two whole nodes, started as ``swarm-node join`` starts them, alone in a swarm of their
own, one after the other and never at the same time; which comes first alternates. ``sync``
has as many threads as the node itself chooses, ``async`` one for the engine and one for the
learner. The time begins with the end of a node's first rounds, so that what starts with them does
not count, and ends with an interrupt. The last checkpoint is then scored on held-out
tasks, the same ones for all, outside the time.

``area`` is the mean training reward over the time, each round's for as long as the round took; the
ratios are overlap's over alternate's, pair by pair. Regimes: ``plain`` is what ``join`` does;
``long`` samples hot and far, so that a few completions are long; ``slow`` waits for its verifier
(slow_sorting.py). Run it as ``python benchmarks/schedules.py [--seconds 60] [--pairs 1]
[--log FILE] [--json]``: with a log the pairs of earlier runs count as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from output import show

from node.cli.options import overrides_of
from node.config.config import write_config
from node.demo.node_process import NodeProcess
from node.demo.run import loopback
from node.errors import NodeError
from node.monitor.history import read_records
from node.monitor.record import RoundRecord
from node.network.creation import create_swarm
from protocol.identity import Identity

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "own_task"
WARM_UP = 4
"""Rounds, in which the engine's and the verifiers' processes start."""
START_SECONDS = 300.0
LOOK_SECONDS = 0.05
SMOOTHED = 10
"""Rounds that a reward is the mean of where it is compared with a level."""
NEVER = 1 << 30
COMPARED = (
    "rounds",
    "groups",
    "groups_informative",
    "mean_length",
    "area",
    "reward_end",
    "heldout",
    "staleness",
)
SCHEDULES: dict[str, dict[str, Any]] = {
    "sync": {"schedule.mode": "sync"},
    "async": {"schedule.mode": "async", "node.threads": 1},
}
REGIMES: dict[str, dict[str, Any]] = {
    "plain": {},
    "long": {"engine.max_new_tokens": 256, "engine.temperature": 1.5},
    "slow": {"engine.max_new_tokens": 8},
}


class Trial:
    """One node for the time given.

    Args:
        folder: new, for the node.
        overrides: its configuration.
    """

    def __init__(self, folder: Path, overrides: Mapping[str, Any], task_set: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        tasks = folder.parent / f"{folder.name}-tasks"
        declare(tasks)
        path = (ROOT, ROOT / "benchmarks", EXAMPLE, tasks)
        self._environment = {"PYTHONPATH": os.pathsep.join(map(str, path))}
        identity = Identity.create(folder / "identity.key")
        manifest = create_swarm(identity, name="schedules", task_set=task_set)
        (folder / "manifest.swarm").write_bytes(manifest)
        write_config(folder / "node.toml", loopback(dict(overrides)))

    def run(self, seconds: float) -> list[RoundRecord]:
        """The records of the rounds that ended in time, the one before the time included.

        Raises:
            NodeError: the node ended, or takes too long to start.
        """
        command = ["join", "--config", str(self._folder / "node.toml")]
        node = NodeProcess(command, self._folder, self._environment)
        try:
            begin = self._warm(node)
            while time.time() < begin + seconds:
                self._check(node)
                time.sleep(LOOK_SECONDS)
        finally:
            node.close()
        records = read_records(self._folder)[WARM_UP - 1 :]
        return [record for record in records if record.time <= begin + seconds]

    def heldout(self, tasks: int) -> float:
        """Mean reward of the last checkpoint on held-out tasks."""
        command = [sys.executable, "-m", "node.cli.main", "eval", "--json"]
        options = ["--config", str(self._folder / "node.toml"), "--tasks", str(tasks)]
        options += ["--set", "engine.backend=transformers", "--set", "engine.temperature=1.0"]
        environment = {**os.environ, **self._environment}
        run = subprocess.run(
            [*command, *options], check=True, env=environment, stdout=subprocess.PIPE
        )
        return float(json.loads(run.stdout)["mean_reward"])

    def _warm(self, node: NodeProcess) -> float:
        deadline = time.monotonic() + START_SECONDS
        while len(records := read_records(self._folder)) < WARM_UP:
            self._check(node)
            if time.monotonic() > deadline:
                raise NodeError("the node does not start", node.last_words(), "See its node.log.")
            time.sleep(LOOK_SECONDS)
        return float(records[WARM_UP - 1].time)

    def _check(self, node: NodeProcess) -> None:
        if node.exit_code is not None:
            raise NodeError("the node ended", node.last_words(), "See its node.log.")


def declare(folder: Path) -> None:
    """Make slow_sorting.py the installed task ``sorting``, by writing what pip would."""
    metadata = folder / "slow_sorting-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-sorting\nVersion: 1\n")
    entry = "[swarm_node.tasks]\nsorting = slow_sorting:SlowSorting\n"
    (metadata / "entry_points.txt").write_text(entry)


def figures(records: Sequence[RoundRecord], seconds: float, level: float) -> dict[str, Any]:
    """What a node did in its time; the first record only says when that began."""
    begin, rounds = records[0].time, [r for r in records[1:] if r.groups_local]
    ends = [record.time - begin for record in (records[0], *rounds)]
    rewards = [record.reward_local for record in rounds]
    last = max(1, len(rounds) // 10)
    phases = {name for record in rounds for name in record.seconds} - {"total"}
    spent = {name: sum(r.seconds.get(name, 0.0) for r in rounds) for name in sorted(phases)}
    return {
        "rounds": len(rounds),
        "groups": sum(r.groups_local for r in rounds),
        "groups_informative": round(sum(r.groups_local * r.informative_local for r in rounds)),
        "tokens_trained": sum(r.tokens_trained for r in rounds),
        "mean_length": round(fmean(r.mean_length for r in rounds), 2),
        "reward_end": round(fmean(rewards[-last:]), 4),
        "area": round(area(ends, rewards, seconds), 4),
        "level_s": level_s(ends, rewards, level),
        "staleness": round(staleness(rounds), 3),
        "shares": {name: round(s / sum(spent.values()), 3) for name, s in spent.items() if s},
    }


def area(ends: Sequence[float], rewards: Sequence[float], seconds: float) -> float:
    """Mean over the time of a reward that is each round's as long as that lasts, and the last
    one's from then on. ``ends`` has one entry more, the begin."""
    lasted = [after - before for before, after in pairwise(ends)]
    lasted[-1] += seconds - ends[-1]
    return sum(s * reward for s, reward in zip(lasted, rewards, strict=True)) / seconds


def level_s(ends: Sequence[float], rewards: Sequence[float], level: float) -> float | None:
    """Seconds until the smoothed reward is at the level; None where it never is."""
    for number in range(SMOOTHED, len(rewards) + 1):
        if fmean(rewards[number - SMOOTHED : number]) >= level:
            return round(ends[number], 2)
    return None


def staleness(rounds: Sequence[RoundRecord]) -> float:
    """Mean age of own tokens in updates."""
    ages = [(int(age), n) for record in rounds for age, n in record.staleness.items()]
    return sum(age * n for age, n in ages) / max(1, sum(n for _, n in ages))


def pair(seed: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both schedules, one after the other."""
    order = list(SCHEDULES) if seed % 2 == 0 else list(reversed(SCHEDULES))
    task_set = str(EXAMPLE / "sorting.toml") if options.regime == "slow" else "tiny"
    done: dict[str, Any] = {"seed": seed, "first": order[0]}
    for name in order:
        overrides = {
            "node.seed": seed,
            "policy.model": options.model,
            "engine.backend": options.engine,
            "schedule.eval_every": NEVER,
            "schedule.checkpoint_every": 50,
            "monitor.live": False,
            **REGIMES[options.regime],
            **SCHEDULES[name],
            **overrides_of(options.set),
        }
        if name == "async":
            overrides["schedule.max_staleness"] = options.staleness
        trial = Trial(folder / f"{seed}-{name}", overrides, task_set)
        result = figures(trial.run(options.seconds), options.seconds, options.level)
        done[name] = result | {"heldout": round(trial.heldout(options.eval_tasks), 4)}
    return done


def summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both schedules, and the ratios pair by pair."""
    result: dict[str, Any] = {}
    for name in SCHEDULES:
        for figure in COMPARED:
            result[f"{name}_{figure}"] = median(p[name][figure] for p in pairs)
        reached = [p[name]["level_s"] for p in pairs if p[name]["level_s"] is not None]
        result[f"{name}_level_s"] = median(reached) if reached else None
        result[f"{name}_level_reached"] = f"{len(reached)} of {len(pairs)}"
        result[f"{name}_shares"] = pairs[-1][name]["shares"]
    for figure in ("rounds", "area", "heldout"):
        ratios = [p["async"][figure] / p["sync"][figure] for p in pairs]
        result[f"{figure}_ratio"] = round(median(ratios), 2)
        result[f"{figure}_ratio_least_most"] = [round(min(ratios), 2), round(max(ratios), 2)]
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each node")
    parser.add_argument("--pairs", type=int, default=3, help="to run now")
    parser.add_argument("--log", type=Path, help="file of pairs, which those of this run join")
    parser.add_argument("--regime", choices=REGIMES, default="plain")
    parser.add_argument("--model", default="tiny", help="as policy.model")
    parser.add_argument("--engine", default="transformers", help="as engine.backend")
    parser.add_argument("--staleness", type=int, default=1, help="as schedule.max_staleness")
    parser.add_argument("--level", type=float, default=0.5, help="training reward to reach")
    parser.add_argument("--eval-tasks", type=int, default=256, help="held-out, 8 answers each")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="of both nodes")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    asked = {k: v for k, v in vars(options).items() if k not in ("pairs", "log", "json")}
    pairs: list[dict[str, Any]] = []
    if options.log and options.log.exists():
        pairs = [json.loads(line) for line in options.log.read_text().splitlines()]
    if any(each["asked"] != asked for each in pairs):
        sys.exit(f"{options.log} holds pairs of other options than {asked}: name another --log")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(len(pairs), len(pairs) + options.pairs):
            pairs.append({"asked": asked, **pair(seed, options, Path(folder))})
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(pairs[-1]) + "\n")
    result = {**asked, "pairs": len(pairs), **summary(pairs)}
    show({**result, "each": pairs} if options.json else result, as_json=options.json)


if __name__ == "__main__":
    main()
