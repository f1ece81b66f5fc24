"""Run a swarm of processes here: a bootstrap node and N nodes, on loopback."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from node.config.config import Config, load, write_config
from node.config.registry import ENGINES
from node.config.sections import NetworkSection
from node.demo.node_process import NodeProcess, RecordTail, stop_all
from node.demo.summary import SwarmSummary, SwarmView, summarise_node, summarise_swarm
from node.engines.kinds import EngineKind
from node.errors import ConfigError, NodeError
from node.monitor.history import MEASURES, draw_runs, read_history, window_for
from node.monitor.output import as_typed
from node.monitor.record import RoundRecord
from node.network.creation import create_swarm
from node.network.transports import check_transport
from node.storage.atomic_files import PRIVATE_FOLDER, make_folder, write_new
from node.threads import check_semaphores
from protocol.identity import Identity
from protocol.manifest import swarm_id
from swarm.common.util import counted

if TYPE_CHECKING:
    from node.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Practice:
    """One shipped task set, with the models made for it, which nodes use in turn."""

    models: tuple[str, ...]
    max_new_tokens: int


PRACTICES = {"tiny": Practice(("tiny", "tiny-wide"), 16), "games": Practice(("tiny-games",), 64)}


def practice_of(task_set: str) -> Practice:
    """Return a task set's demo settings; raises ``ConfigError`` if it has no models."""
    if task_set not in PRACTICES:
        names = ", ".join(PRACTICES)
        raise ConfigError("--task-set", task_set, f"Shipped models exist for these: {names}.")
    return PRACTICES[task_set]


EPOCH_SECONDS = 2.0
START_SECONDS = 90.0
TRIAL_SECONDS = 900.0  # until a node has loaded a real model and tried it
REAL_TASK_TOKENS = 512
REAL_EVAL_EVERY = 8  # rounds
EVALUATION_SECONDS = 600.0  # after its minutes, in which a node has to be evaluated
REFRESH_SECONDS = 0.5
SLOW_START_SECONDS = 10.0
EVALUATIONS = 15  # per node
UNLIMITED = 150  # rounds per that many evaluations if there is no last round
DEFAULT_TRANSPORT = NetworkSection().transport
MIXED = ("hivemind", "libp2p")
SEED = -1  # number of the bootstrap node
TRIED = ("engine.temperature", "engine.max_new_tokens", "tasks.levels", "tasks.weights")
"""Keys that a node may take from its baseline."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Options of ``swarm-node demo``; without a limit it runs until Ctrl-C.

    After ``minutes`` of training a node is stopped once it has been evaluated again.
    """

    nodes: int = 4
    rounds: int = 150  # 0: no limit
    minutes: float = 0.0  # 0: no limit
    local: int = 2
    external: int = 6
    seed: int = 0
    engine: str = "transformers"
    transport: str = DEFAULT_TRANSPORT
    task_set: str = "tiny"
    model: str = ""  # a real one, for all nodes; else the task set's
    device: str = "auto"  # of a real model

    def model_of(self, number: int) -> str:
        """Return the model of node ``number``; the task set's models take turns."""
        if self.model:
            return self.model
        models = practice_of(self.task_set).models
        return models[number % len(models)]

    def transport_of(self, number: int) -> str:
        """Return the transport of node ``number``; ``mixed`` alternates them."""
        return MIXED[(number + 1) % len(MIXED)] if self.transport == "mixed" else self.transport


def run(settings: DemoSettings, folder: Path, console: Console) -> SwarmSummary:
    """Run the swarm to its end or Ctrl-C; raise ``NodeError`` or ``ConfigError``."""
    threads = max(1, (os.cpu_count() or 1) // settings.nodes)
    for number in range(settings.nodes):
        check_transport(loopback(node_overrides(settings, number, threads)).network)
    check_semaphores()
    kind: EngineKind = ENGINES.load(settings.engine)()
    kind.check()
    if kind.start_seconds > SLOW_START_SECONDS:
        delay = f"{kind.start_seconds:.0f} seconds to start"
        count = counted(settings.nodes, "node")
        console.print(f"{count}, each with an engine that takes about {delay}")
    start = time.monotonic()
    make_folder(folder, "--run-dir", fresh=True)
    console.print(opening(settings, folder), soft_wrap=True, highlight=False)
    if settings.model:
        console.print(memory_of(settings), soft_wrap=True, highlight=False)
    with swarm_of(settings, folder, threads, console) as (address, nodes):
        console.print("to join while this runs, use another terminal:")
        command = as_typed(f"  swarm-node join --peers {address}")
        console.print(command, soft_wrap=True, highlight=False)
        view = SwarmView(settings.rounds, settings.nodes, console)
        try:
            watch(nodes, view, console, settings.minutes)
        except KeyboardInterrupt:
            console.print("stopping")
        with console.status("waiting for the nodes to end"):
            stop_all(list(nodes.values()))
    with console.status("drawing the chart"):
        return summarise(settings, folder, nodes, time.monotonic() - start)


def opening(settings: DemoSettings, folder: Path) -> str:
    """Describe the swarm and its end."""
    ending = "until Ctrl-C"
    if settings.rounds:
        ending = f"up to round {settings.rounds}; use --rounds 0 to run until Ctrl-C"
    elif settings.minutes:
        ending = f"for about {settings.minutes:g} minutes; use --rounds 0 to run until Ctrl-C"
    return f"a swarm of {settings.nodes} and a bootstrap node in {folder}, {ending}"


@contextmanager
def swarm_of(
    settings: DemoSettings, folder: Path, threads: int, console: Console
) -> Iterator[tuple[str, dict[str, NodeProcess]]]:
    """Start the bootstrap node, then the nodes; stop all at the end."""
    processes: list[NodeProcess] = []
    environment = {"OMP_NUM_THREADS": str(threads)}
    try:
        transport = settings.transport_of(SEED)
        bootstrap = start_bootstrap(folder / "seed", environment, transport, settings.task_set)
        processes.append(bootstrap)
        with console.status("starting the bootstrap node"):
            address = bootstrap.wait_for_address(START_SECONDS)
        nodes: dict[str, NodeProcess] = {}
        for number in range(settings.nodes):
            name = f"node-{number + 1}"
            overrides = node_overrides(settings, number, threads)
            overrides["network.peers"] = [address]
            if settings.model and nodes:
                config = load(nodes["node-1"].folder / "node.toml")
                overrides |= {key: attrgetter(key)(config) for key in TRIED}
            is_first = bool(settings.model) and not nodes
            nodes[name] = start_node(folder / name, name, overrides, environment, tries=is_first)
            processes.append(nodes[name])
            if is_first:
                with console.status("evaluating the model on the tasks, for at most two minutes"):
                    nodes[name].wait_for_address(TRIAL_SECONDS)
                prefixes = ("baseline on", "result", "  ")
                lines = [line for line in nodes[name].output() if line.startswith(prefixes)]
                console.print("\n".join(lines), soft_wrap=True, highlight=False)
        yield address, nodes
    finally:
        stop_all(list(reversed(processes)))


def start_bootstrap(
    folder: Path,
    environment: dict[str, str],
    transport: str = DEFAULT_TRANSPORT,
    task_set: str = "tiny",
) -> NodeProcess:
    """Create a swarm in ``folder`` and start its bootstrap node."""
    folder.mkdir(mode=PRIVATE_FOLDER)
    identity = Identity.create(folder / "identity.key")
    manifest = create_swarm(identity, name="demo", task_set=task_set, epoch_seconds=EPOCH_SECONDS)
    write_new(folder / "manifest.swarm", manifest)
    overrides = {"node.name": "seed", "network.transport": transport, "monitor.dashboard": False}
    write_config(folder / "node.toml", loopback(overrides))
    return NodeProcess(["bootstrap", "--config", str(folder / "node.toml")], folder, environment)


def start_node(
    folder: Path,
    name: str,
    overrides: dict[str, Any],
    environment: dict[str, str],
    *,
    tries: bool = False,
) -> NodeProcess:
    """Write a node's configuration and identity into ``folder`` and start it.

    ``tries``: it tries its model on the tasks first, and takes the settings that follow.
    """
    folder.mkdir(mode=PRIVATE_FOLDER)
    Identity.create(folder / "identity.key")
    write_config(folder / "node.toml", loopback({"node.name": name, **overrides}))
    baseline = "--accept" if tries else "--no-baseline"
    command = ["join", baseline, "--config", str(folder / "node.toml")]
    return NodeProcess(command, folder, environment)


def loopback(overrides: dict[str, Any]) -> Config:
    return Config.with_overrides({"network.listen": ["/ip4/127.0.0.1/tcp/0"], **overrides})


def node_overrides(settings: DemoSettings, number: int, threads: int) -> dict[str, Any]:
    """Return the config of node ``number``; models alternate if there are two."""
    model_keys = _of_real_model if settings.model else _of_shipped_model
    return {
        **model_keys(settings, number),
        "node.seed": settings.seed + number,
        "node.threads": threads,
        "mixture.local": settings.local,
        "mixture.external": settings.external,
        "engine.backend": settings.engine,
        "network.transport": settings.transport_of(number),
        "schedule.rounds": settings.rounds,
        "monitor.live": False,
        "monitor.dashboard": number == 0,
    }


def _of_shipped_model(settings: DemoSettings, number: int) -> dict[str, Any]:
    return {
        "policy.model": settings.model_of(number),
        "engine.max_new_tokens": practice_of(settings.task_set).max_new_tokens,
        # Small micro-batches save memory; the gradient is the same.
        "learner.micro_batch_tokens": 1024,
        "schedule.eval_every": max(1, (settings.rounds or UNLIMITED) // EVALUATIONS),
        "schedule.eval_tasks": 128,
        "schedule.checkpoint_every": 50,
    }


def _of_real_model(settings: DemoSettings, number: int) -> dict[str, Any]:
    return {
        **plan_of(settings).choice.keys,
        "policy.device": settings.device,
        "schedule.eval_every": min(REAL_EVAL_EVERY, settings.rounds or REAL_EVAL_EVERY),
        "schedule.eval_tasks": 48,
    }


def plan_of(settings: DemoSettings) -> Plan:
    """Plan a node with its share of the GPU; raise ConfigError if that is too small."""
    from node.plan.machine import one_of, this_machine
    from node.plan.plan import plan

    machine = this_machine(settings.device, Path())
    try:
        return plan(settings.model, one_of(machine, settings.nodes), REAL_TASK_TOKENS)
    except ConfigError as error:
        raise ConfigError("--nodes", settings.nodes, f"For each of them: {error}") from error


def memory_of(settings: DemoSettings) -> str:
    """Say how much memory each node takes."""
    from node.plan.model_shape import gigabytes

    plan = plan_of(settings)
    need, machine = plan.choice.estimate, plan.machine
    text = f"each node is planned with {gigabytes(need.peak('memory'))} of main memory"
    if not machine.apart:
        return text
    share, gpu_need = gigabytes(machine.device.usable), gigabytes(need.peak("device"))
    return f"{text}, and {gpu_need} of its {share} of the {machine.device.name}"


def evaluated_since(end: float, records: Sequence[RoundRecord]) -> bool:
    """Return whether a round that ended after this unix time was evaluated."""
    return any(each.time > end and each.reward_eval is not None for each in records)


def watch(nodes: dict[str, NodeProcess], view: SwarmView, console: Console, minutes: float) -> None:
    """Show the nodes and the first one's page until all end; raise on a failure.

    After ``minutes``, if not 0, each is stopped once it has been evaluated, or when it takes too
    long to be.
    """
    first, url = next(iter(nodes.values())), ""
    tails = {name: RecordTail(node.folder / "metrics.jsonl") for name, node in nodes.items()}
    end = time.time() + 60.0 * minutes if minutes else math.inf
    with view.shown() as show:
        while any(node.exit_code is None for node in nodes.values()):
            records = {name: tail.look() for name, tail in tails.items()}
            show(records)
            for name, node in nodes.items():
                if evaluated_since(end, records[name]) or time.time() > end + EVALUATION_SECONDS:
                    node.interrupt()
            if not url and (url := (first.status() or {}).get("dashboard") or ""):
                console.print(f"dashboard: {url}", soft_wrap=True, highlight=False)
            check_none_failed(nodes)
            time.sleep(REFRESH_SECONDS)


def check_none_failed(nodes: Mapping[str, NodeProcess]) -> None:
    """Raise NodeError if a node ended with an error."""
    for name, node in nodes.items():
        if node.exit_code not in (None, 0):
            problem = f"{name} ended with status {node.exit_code}"
            remedy = f"Its output is in {node.folder / 'output.log'}."
            raise NodeError(problem, node.last_words(), remedy)


def summarise(
    settings: DemoSettings, folder: Path, nodes: dict[str, NodeProcess], wall_s: float
) -> SwarmSummary:
    records = {name: read_history(node.folder) for name, node in nodes.items()}
    if not all(records.values()):
        remedy = f"The logs are under {folder}."
        raise NodeError("stopped before every node finished a round", None, remedy)
    chart = folder / "reward.png"
    draw_runs(records, window_for(list(records.values())), chart, MEASURES[:2])
    rows = []
    for number, (name, node) in enumerate(nodes.items()):
        peer_id = Identity.load(node.folder / "identity.key").peer_id
        rows.append(summarise_node(name, peer_id, settings.model_of(number), records[name]))
    manifest = (folder / "seed" / "manifest.swarm").read_bytes()
    return summarise_swarm(swarm_id(manifest).hex(), rows, wall_s, chart)
