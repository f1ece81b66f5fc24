"""A swarm of processes on one device: how long a node's round takes, and what of it is sampling."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from on_gpu.machine import free_bytes
from on_gpu.section import Row, Settings, SkippedError

if TYPE_CHECKING:
    from node.demo.node_process import NodeProcess

WARM_UP = 2
"""Rounds of a node that do not count: its first graphs are recorded, and few groups came in."""
PATIENCE = 40.0
"""Seconds of the section after which the nodes are stopped, however few rounds they have done."""


@dataclass(frozen=True, slots=True)
class Size:
    """Nodes, rounds of each, and a round's own groups, peers' groups and completions of a group."""

    nodes: int
    rounds: int
    local: int
    external: int
    completions: int
    tokens: int


WHOLE = Size(nodes=8, rounds=20, local=8, external=4, completions=8, tokens=48)
SMOKE = Size(nodes=2, rounds=WARM_UP + 1, local=2, external=2, completions=2, tokens=8)


def run(settings: Settings) -> Iterator[Row]:
    """Eight nodes with the real model of ``--model`` share the device; ``--smoke`` takes two.

    Every node is a process, as ``swarm-node demo`` starts it, without its trial of the model.
    """
    from node.demo.node_process import RecordTail

    if not settings.model and not settings.smoke:
        raise SkippedError("takes a real model: name its folder with --model")
    size, begun = SMOKE if settings.smoke else WHOLE, time.monotonic()
    free = least = _free(settings)
    with tempfile.TemporaryDirectory() as folder, _swarm(settings, size, Path(folder)) as nodes:
        tails = [RecordTail(node.folder / "metrics.jsonl") for node in nodes]
        until = begun + PATIENCE * settings.patience
        while time.monotonic() < until and any(node.exit_code is None for node in nodes):
            least = min(least, _free(settings))
            time.sleep(0.1)
            for node in nodes:
                if node.exit_code not in (None, 0):
                    raise RuntimeError(f"{node.folder.name}: {node.last_words()}")
        used = round((free - least) / 1e9, 2) if settings.on_gpu else None
        row = _row(settings, size, [tail.look() for tail in tails])
        yield row | {"device_gb": used, "whole_s": round(time.monotonic() - begun, 1)}


@contextmanager
def _swarm(settings: Settings, size: Size, folder: Path) -> Iterator[list[NodeProcess]]:
    """A bootstrap node and the nodes, all stopped at the end."""
    from node.demo.node_process import stop_all
    from node.demo.run import START_SECONDS, start_bootstrap, start_node

    threads = max(1, (os.cpu_count() or 1) // size.nodes)
    environment = {"OMP_NUM_THREADS": str(threads)}
    seed = start_bootstrap(folder / "seed", environment, task_set=_task_set(settings))
    processes = [seed]
    try:
        address = seed.wait_for_address(START_SECONDS)
        for number in range(size.nodes):
            overrides = _overrides(settings, size, number, threads) | {"network.peers": [address]}
            name = f"node-{number + 1}"
            processes.append(start_node(folder / name, name, overrides, environment))
        yield processes[1:]
    finally:
        stop_all(processes[::-1])


def _overrides(settings: Settings, size: Size, number: int, threads: int) -> dict[str, Any]:
    """A node's configuration: that of the demo, with the lengths of this section."""
    from node.demo.run import DemoSettings, node_overrides

    demo = DemoSettings(
        nodes=size.nodes,
        rounds=size.rounds,
        local=size.local,
        external=size.external,
        model=settings.model,
        device=settings.device,
        task_set=_task_set(settings),
    )
    return node_overrides(demo, number, threads) | {
        "engine.group_size": size.completions,
        "engine.max_new_tokens": size.tokens,
        "schedule.eval_every": size.rounds,
        "schedule.checkpoint_every": size.rounds,
        "monitor.dashboard": False,
    }


def _task_set(settings: Settings) -> str:
    return "starter" if settings.model else "tiny"


def _free(settings: Settings) -> int:
    return free_bytes(settings.device) if settings.on_gpu else 0


def _row(settings: Settings, size: Size, nodes: list[list[Any]]) -> Row:
    late = [record for records in nodes for record in records if record.round > WARM_UP]
    if not late:
        done = [len(records) for records in nodes]
        raise RuntimeError(f"no node had {WARM_UP + 1} rounds when time was up: {done}")

    def typical(value: Callable[[Any], float | None]) -> float | None:
        found = [each for each in map(value, late) if each is not None]
        return round(median(found), 3) if found else None

    model = Path(settings.model).name or "tiny"
    written = size.local * size.completions
    return {
        "what": f"{size.nodes} nodes, {model}, {written} completions of at most {size.tokens}",
        "rounds": len(late),
        "round_s": typical(lambda record: _round(record.seconds)),
        "sample_s": typical(lambda record: record.seconds.get("generate")),
        "update_s": typical(lambda record: record.seconds.get("update")),
        "tokens_per_s": typical(lambda record: record.tokens_per_s),
        "tokens_a_completion": typical(lambda record: record.mean_length),
        "peers_groups": typical(lambda record: record.groups_external),
        "informative_local": typical(lambda record: record.informative_local),
    }


def _round(seconds: dict[str, float]) -> float:
    """Of what every round has; checkpoints and evaluations are not in each."""
    return seconds["total"] - seconds.get("evaluate", 0.0) - seconds.get("checkpoint", 0.0)
