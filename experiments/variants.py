"""A swarm of different models: variants of one model train in real nodes, together and alone.

Unlike the simulated swarms, each node is a process with its own network connections, so the times
and the order of groups depend on the machine.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from experiments.folder import ExperimentFolder
from experiments.report import markdown_rows
from experiments.settings import Settings
from experiments.warm_start import warm_started
from node.demo.node_process import NodeProcess, stop_all
from node.demo.run import (
    MIXED,
    REFRESH_SECONDS,
    START_SECONDS,
    TRIAL_SECONDS,
    check_none_failed,
    start_bootstrap,
    start_node,
)
from node.errors import NodeError
from node.monitor.history import read_history
from node.monitor.record import RoundRecord
from node.plan.choice import learning_rate
from node.plan.model_shape import shape_of
from node.storage.atomic_files import make_folder
from protocol.identity import Identity
from swarm.common.util import counted

Make = Callable[[Path, Path], None]
"""Writes the variant of a model's folder into another folder."""


def halve(model: Path, to: Path) -> None:
    """Keep every second layer, beginning with the first."""
    half: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model, dtype="auto", trust_remote_code=False
    )
    stack = half.get_decoder()  # type: ignore[no-untyped-call]
    stack.layers = torch.nn.ModuleList(stack.layers[::2])
    config = half.config.get_text_config()
    config.num_hidden_layers = len(stack.layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[::2]
    half.save_pretrained(to)
    AutoTokenizer.from_pretrained(model, trust_remote_code=False).save_pretrained(to)


def shorten_tokens(model: Path, to: Path) -> None:
    """Keep the first eighth of a byte-pair tokenizer's merges.

    The same text becomes other, shorter tokens. Raises NodeError for another kind of tokenizer.
    """
    shutil.copytree(model, to)
    path = to / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    merges = tokenizer["model"].get("merges")
    if not merges:
        kind = tokenizer["model"]["type"]
        raise NodeError("tokenizer", kind, "Use a model with a byte-pair tokenizer.")
    tokenizer["model"]["merges"] = merges[: len(merges) // 8]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Variant:
    """A node's model, made from the given one and trained ``warm_start`` steps on examples."""

    name: str
    make: Make | None = None  # None: the given model
    warm_start: int = 0
    rank: int = 0  # of the adapters that the node trains; 0: all weights


VARIANTS = (
    Variant("whole"),
    Variant("adapters", rank=16),
    Variant("half", halve, warm_start=120),
    Variant("tokens", shorten_tokens, warm_start=15),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One node's run."""

    node: str
    rounds: int
    seconds: float
    first: float  # held-out reward before and after
    last: float
    reward: float  # mean of its rollouts
    tokens: int  # generated
    taken: Mapping[str, int]  # groups in its updates by the node that wrote them
    useful: Mapping[str, float]  # mean usefulness of these groups


def run_variants(settings: Settings, folder: Path, console: Console) -> str:
    """Train all variants together, then each alone, and return the table.

    ``settings`` has the given model, the rounds of each node and the number of held-out tasks.

    Raises:
        NodeError: a node failed, or a variant cannot be made.
    """
    make_folder(folder, "--run-dir", fresh=True)
    models = {each.name: _model(each, settings, folder, console) for each in VARIANTS}
    together = _train(settings, folder / "together", models, shares=True)
    alone = _train(settings, folder / "alone", models, shares=False)
    results = {"together": list(map(asdict, together)), "alone": list(map(asdict, alone))}
    table = "\n".join(_table(together, alone))
    ExperimentFolder(folder).write_results(results, table)
    return table


def _model(variant: Variant, settings: Settings, folder: Path, console: Console) -> Path:
    """Return the folder of a variant's model, which this makes."""
    made = Path(settings.model)
    if variant.make:
        console.print(f"making {variant.name}")
        made = folder / "models" / variant.name
        variant.make(Path(settings.model), made)
    if variant.warm_start:
        console.print(f"{counted(variant.warm_start, 'step')} of warm start of {variant.name}")
        begun = replace(settings, model=str(made), warm_start=variant.warm_start)
        warm_started(begun, seed=0).save(made)
    return made


def _train(
    settings: Settings,
    folder: Path,
    models: Mapping[str, Path],
    *,
    shares: bool,
) -> list[Result]:
    """Run a swarm of all variants until each has done its rounds.

    The nodes use both networks in turn. A node that is done first shares no more.
    """
    folder.mkdir()
    environment = {"OMP_NUM_THREADS": "1"}
    processes = [start_bootstrap(folder / "seed", environment, MIXED[0], settings.task_set)]
    nodes: dict[str, NodeProcess] = {}
    try:
        address = processes[0].wait_for_address(START_SECONDS)
        for number, variant in enumerate(VARIANTS):
            keys = _keys(settings, variant, models[variant.name], number, shares=shares)
            keys["network.peers"] = [address]
            node = start_node(folder / variant.name, variant.name, keys, environment)
            nodes[variant.name] = node
            processes.append(node)
            node.wait_for_address(TRIAL_SECONDS)
        while any(node.exit_code is None for node in nodes.values()):
            check_none_failed(nodes)
            time.sleep(REFRESH_SECONDS)
        check_none_failed(nodes)
    finally:
        stop_all(processes[::-1])
    authors = {
        Identity.load(node.folder / "identity.key").author.hex(): name
        for name, node in nodes.items()
    }
    return [_result(name, read_history(node.folder), authors) for name, node in nodes.items()]


def _keys(
    settings: Settings, variant: Variant, model: Path, number: int, *, shares: bool
) -> dict[str, Any]:
    """Return the configuration of a variant's node; others than these keys are defaults."""
    families = dict(settings.setup.tasks.families)
    parameters = shape_of(model, str(model)).parameters
    return {
        **settings.setup.keys,
        "node.seed": number,
        "node.threads": 1,
        "policy.model": str(model),
        "policy.device": settings.device,
        "policy.dtype": settings.dtype,
        "policy.lora_rank": variant.rank,
        "learner.lr": learning_rate(parameters, adapters=variant.rank > 0),
        # Small micro-batches save memory, as the nodes update at the same time.
        "learner.micro_batch_tokens": 1024,
        "engine.max_new_tokens": settings.setup.max_new_tokens,
        "mixture.local": 2 if shares else 8,
        "mixture.external": 6 if shares else 0,
        "tasks.weights": dict.fromkeys(families, 1.0),
        "tasks.levels": {name: list(range(count)) for name, count in families.items()},
        "network.transport": MIXED[number % len(MIXED)],
        "schedule.rounds": settings.rounds,
        "schedule.eval_every": settings.rounds,
        "schedule.eval_tasks": settings.eval_tasks,
        "monitor.live": False,
        "monitor.dashboard": False,
    }


def _result(name: str, records: Sequence[RoundRecord], authors: Mapping[str, str]) -> Result:
    evaluated = [each.reward_eval for each in records if each.reward_eval is not None]
    taken, useful = Counter[str](), defaultdict[str, float](float)
    for record in records:
        for author, count in record.authors.items():
            taken[authors[author]] += count
            useful[authors[author]] += record.useful.get(author, 0.0)
    return Result(
        node=name,
        rounds=records[-1].round,
        seconds=sum(each.seconds["total"] for each in records),
        first=evaluated[0],
        last=evaluated[-1],
        reward=fmean(each.reward_local for each in records if each.reward_local is not None),
        tokens=sum(each.tokens_generated for each in records),
        taken=dict(taken),
        useful={author: useful[author] / count for author, count in taken.items()},
    )


COLUMNS = (
    *("node", "rounds", "minutes: alone, together", "tokens: alone, together"),
    *("reward: alone, together", "held-out: first; alone, together"),
)


def _table(together: Sequence[Result], alone: Sequence[Result]) -> list[str]:
    names = [each.node for each in together]
    header = [*COLUMNS, *(f"groups of {name} (usefulness)" for name in names)]
    rows = []
    for with_peers, without in zip(together, alone, strict=True):
        given = (_given(with_peers, name) for name in names)
        rows.append(
            (
                with_peers.node,
                str(with_peers.rounds),
                f"{without.seconds / 60:.0f}, {with_peers.seconds / 60:.0f}",
                f"{without.tokens:,}, {with_peers.tokens:,}",
                f"{without.reward:.3f}, {with_peers.reward:.3f}",
                f"{with_peers.first:.3f}; {without.last:.3f}, {with_peers.last:.3f}",
                *given,
            )
        )
    return markdown_rows(header, rows)


def _given(result: Result, author: str) -> str:
    count = result.taken.get(author, 0)
    return f"{count} ({result.useful[author]:.2f})" if count else "–"
