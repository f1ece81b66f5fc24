"""``swarm-node create``, ``plan``, ``init`` and ``export``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import (
    LOADING,
    BestOption,
    ConfigOption,
    JsonOption,
    LoadedNode,
    StepOption,
    check_choice,
    open_node,
    open_trained,
    overrides_of,
    parse_admission,
    print_json,
    say_lines,
    waiting,
)
from node.errors import NodeError, UsageError
from node.monitor.output import as_typed, say

if TYPE_CHECKING:
    from node.plan.plan import Plan
    from node.tasks.verifier.replay_trial import Trial


def create_command(
    name: Annotated[str, typer.Option(help="Display name of the swarm.")],
    task_set: Annotated[
        str | None,
        typer.Option(
            help="Task set: starter, starter-games, reasoning-gym or a TOML file; for the shipped "
            "models tiny, games or working. [default: starter; tiny for a shipped model]"
        ),
    ] = None,
    epoch_seconds: Annotated[
        float,
        typer.Option(
            help="Seconds between the announcements of a node; choose about the time of a round."
        ),
    ] = 60.0,
    admission: Annotated[
        str,
        typer.Option(
            metavar="open|allow:FILE|pow:BITS",
            help="Peers to admit: all, those in a file of peer ids, or those with a proof of work.",
        ),
    ] = "open",
    answer_tokens: Annotated[
        int | None,
        typer.Option(help="Completion tokens that a message holds. [default: the usual limits]"),
    ] = None,
    group_size: Annotated[
        int, typer.Option(help="Completions in such a group; see --answer-tokens.")
    ] = 8,
    out: Annotated[
        Path | None,
        typer.Option(help="New file, for another node's manifest.swarm. [default: this node's]"),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Create and sign the manifest of a new swarm, on which its members agree."""
    from node.network import creation
    from node.storage.atomic_files import write_new
    from node.tasks.task_set import allowed_by
    from protocol.identity import Identity
    from protocol.manifest import swarm_id

    node = open_node(config)
    tasks = creation.usual_task_set(node.config.policy.model) if task_set is None else task_set
    path = out or node.folder.manifest
    if out is None and not os.path.lexists(path):
        with node.folder.locked():
            pass  # a node that joins writes a manifest, and a killed move has one
    if os.path.lexists(path):
        remedy = "Name a new file with --out, or move this one away if no swarm uses it yet."
        raise NodeError("cannot write the manifest (File exists)", path, remedy)
    with _errors_of_options(tasks):
        answers = None if answer_tokens is None else creation.bounds_for(answer_tokens, group_size)
        manifest = creation.create_swarm(
            Identity.load(node.folder.identity),
            name=name,
            task_set=tasks,
            epoch_seconds=epoch_seconds,
            admission=parse_admission(admission),
            answers=answers,
        )
        allowed = allowed_by(node.config.tasks, node.config.sandbox)
        with waiting("opening the task set and testing its environments"):
            trial = creation.try_task_set(tasks, allowed)
    write_new(path, manifest)
    identifier = swarm_id(manifest).hex()
    if json:
        fields = {"swarm_id": identifier, "manifest": str(path), "bytes": len(manifest)}
        bounds = {"answers": asdict(answers)} if answers else {}
        print_json({**fields, "environments": asdict(trial), **bounds})
        return
    say(f"wrote {path}")
    say(f"created swarm {identifier} with the task set {tasks}")
    if answers:
        text = f"{group_size} completions of {answer_tokens} tokens have up to {answers.weight}"
        say(f"{text} bytes, and a frame may have {answers.max_frame_bytes}")
    say_lines((*_tried(trial), *creation.cautions(manifest, tasks, allowed, trial, node.path)))
    say_lines(map(as_typed, _next(path, node)))


@contextmanager
def _errors_of_options(task_set: str) -> Iterator[None]:
    """Convert the errors of a new swarm to errors of the options of ``create``."""
    from node.errors import TaskSetError
    from protocol.errors import BadSchema
    from swarm.verification import VerifierError

    try:
        yield
    except VerifierError as failure:
        remedy = "See what is missing with: swarm-node doctor."
        raise NodeError("the task set cannot be tested", str(failure), remedy) from failure
    except TaskSetError as error:
        remedy = "Correct it (docs/guides/own_tasks.md), or name another task set."
        raise UsageError("--task-set", f"{task_set} ({error})", remedy) from error
    except BadSchema as error:
        field, _, problem = str(error).partition(": ")
        remedy = "See the options with: swarm-node create --help."
        raise UsageError(f"--{field.replace('_', '-')}", problem, remedy) from error


def _next(path: Path, node: LoadedNode) -> Iterator[str]:
    """Yield the next steps; a node reads only the manifest in its own folder."""
    pinned = node.folder.manifest
    config = quote(str(node.path))
    bootstrap = f"swarm-node bootstrap --config {config}"
    if pinned.exists() and pinned.samefile(path):
        yield f"next: swarm-node join --config {config}"
        yield f"or, without training: {bootstrap}"
        return
    if pinned.exists():
        yield f"{pinned} belongs to another swarm, so this one needs another node"
        yield "next: swarm-node init FOLDER"
        yield f"then: install -m 600 {quote(str(path))} FOLDER/{pinned.name}"
        yield "then: swarm-node bootstrap --config FOLDER"
        return
    yield f"next: install -m 600 {quote(str(path))} {quote(str(pinned))}"
    yield f"then: {bootstrap}"


def _tried(trial: Trial) -> Iterator[str]:
    if trial.replayed:
        names = ", ".join(trial.replayed)
        yield f"replayed {trial.episodes} episodes of {names} in other processes: all identical"
    for name in trial.unshared:
        yield f"{name} is not replayable: nodes do not share its groups"
    for reason in trial.absent.values():
        yield f"not tested: {reason}"


TASK_TOKENS = 512

TaskTokensOption = Annotated[
    int, typer.Option("--task-tokens", min=2, help="Prompt plus completion tokens of a task.")
]


def plan_command(
    model: Annotated[str, typer.Argument(help="Folder, Hugging Face model id or shipped model.")],
    task_tokens: TaskTokensOption = TASK_TOKENS,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Measure the speed on this machine with random weights. It takes a minute.",
        ),
    ] = False,
    memory: Annotated[
        float | None, typer.Option(help="GiB of main memory, to plan for another machine.", min=0.5)
    ] = None,
    device_memory: Annotated[
        float | None,
        typer.Option(
            help="GiB of GPU memory, to plan for a GPU that this machine does not have.", min=1
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Report whether a model fits, what to set, and how long it takes.

    It reads only the model's config.json.
    """
    if probe and (memory is not None or device_memory is not None):
        remedy = "Remove it, or plan for this machine without --memory and --device-memory."
        raise UsageError("--probe", "measures only this machine", remedy)
    with waiting(LOADING) as update:
        estimate = planned(model, task_tokens, Path(), memory, device_memory)
        if probe:
            from node.plan.speed import probe as measured

            estimate = replace(estimate, speed=measured(estimate, update))
    if json:
        print_json(estimate.as_json())
        return
    from node.plan.plan import lines

    say_lines(lines(estimate))
    tokens = "" if task_tokens == TASK_TOKENS else f" --task-tokens {estimate.tokens}"
    say(as_typed(f"next: swarm-node init --model {quote(model)}{tokens} FOLDER"))


def planned(
    model: str,
    tokens: int,
    folder: Path,
    memory: float | None = None,
    device_memory: float | None = None,
) -> Plan:
    """Plan for this machine, or one with other memory (GiB); raise NodeError."""
    from node.policy.model_source import config_folder

    config_folder(model)  # report a missing model before torch is loaded
    from node.plan.machine import asked_for, card, this_machine
    from node.plan.plan import plan

    host = this_machine("auto", folder)
    gpu = None if device_memory is None else card(device_memory)
    return plan(model, asked_for(host, memory, gpu), tokens)


def init_command(
    directory: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path(),
    systemd: Annotated[
        bool,
        typer.Option(
            "--systemd", help="Also write a systemd unit; in an existing node's folder, only that."
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Model to train, with the settings that swarm-node plan suggests here."),
    ] = None,
    task_tokens: TaskTokensOption = TASK_TOKENS,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Config key to write with this value, as in learner.lr=1e-5; repeatable.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Write every config key, each with its explanation.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write node.toml, with the most common keys explained, and the node's identity.

    Keys that are not in node.toml have their defaults. --full writes all keys.
    """
    from node.run.background import write_unit
    from node.run.preflight import open_identity, prepare
    from node.storage.run_folder import RunFolder

    folder = RunFolder(directory)
    is_new = not (systemd and folder.config.exists())
    overrides = overrides_of(assignments)
    if not is_new and (option := "--model" if model else "--set" if overrides else None):
        remedy = f"Remove {option}, or name a new folder."
        raise UsageError(option, f"{folder.config} already exists", remedy)
    plan, keys = None, overrides
    if model and not folder.config.exists():
        with waiting(LOADING):
            plan = planned(model, task_tokens, directory)
    if is_new:
        keys = plan.keys(overrides) if plan else overrides
        folder, identity = prepare(directory, keys, full=full)
    else:
        folder = open_node(folder.config).folder
        identity, _ = open_identity(folder)
    config = directory / folder.config.name
    unit = write_unit(config) if systemd else None
    if json:
        paths = {"config": str(config), "identity": str(folder.identity)}
        fields = {"peer_id": identity.peer_id, "unit": str(unit) if unit else None}
        print_json({**paths, **fields, **({"plan": plan.as_json()} if plan else {})})
        return
    if plan:
        from node.plan.plan import lines

        say_lines(lines(plan, keys))
        if overrides:
            say("The figures are those of the plan without --set.")
    if is_new:
        say(f"wrote {config} and {folder.identity}")
    say(f"this node is {identity.peer_id}")
    if unit is None:
        say(as_typed(f"next: swarm-node join --config {quote(str(config))} --peers ADDRESS"))
        say("without --peers, the node creates a swarm")
        return
    say(f"wrote {unit}")
    say(f"next: systemctl --user link {quote(str(unit))}")
    say(f"then: systemctl --user enable --now {unit.name}")


def export_command(
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write only the LoRA adapter, in peft's format.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Hugging Face repository to upload to, with your login; private if it is new.",
        ),
    ] = None,
    step: StepOption = None,
    best: BestOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write a checkpoint for transformers and vLLM to load.

    It uses the newest checkpoint, unless --step or --best chooses another.
    """
    check_choice(step, best)
    if push is not None:
        from node.evaluation.export import check_pushable

        check_pushable(push)
    node = open_trained(config)
    with waiting(LOADING) as tell:
        from node.evaluation.export import push as upload
        from node.evaluation.export import write_card
        from node.policy.checkpoint_policy import chosen, export

        with chosen(node.folder, step=step, best=best) as checkpoint:
            say_lines(checkpoint.notes, err=True)
            export(node.config, checkpoint, out, adapter=adapter, tell=tell)
            write_card(node.config, node.folder, checkpoint, out, adapter=adapter)
    if not json:
        say(f"wrote {out} from {checkpoint.path.name}")
    if address := None if push is None else upload(out, push):
        say(f"pushed the model to {address}", err=True)
    if json:
        fields = {"model": str(out), "checkpoint": str(checkpoint.path), "state": checkpoint.state}
        print_json({**fields, "pushed": address})
