"""``swarm-node plan``: whether a model fits this machine, how it is set up, how long it takes."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.common import LOADING, DebugOption, JsonOption, print_json
from node.errors import UsageError
from node.monitor.terminal import as_typed, say

if TYPE_CHECKING:
    from node.plan.plan import Plan

TASK_TOKENS = 512

TaskTokensOption = Annotated[
    int,
    typer.Option("--task-tokens", min=2, help="Of a task, its prompt and an answer together."),
]


def command(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or a shipped model.")],
    task_tokens: TaskTokensOption = TASK_TOKENS,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Measure the speed here, with random weights; a minute."),
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option("--memory", help="GiB of main memory, of another machine.", min=0.5),
    ] = None,
    device_memory: Annotated[
        float | None,
        typer.Option("--device-memory", help="GiB of a GPU that is not here.", min=1),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say whether a model fits, what to set, and how long it takes; read its config.json alone."""
    from node.monitor.terminal import Terminal

    if probe and (memory is not None or device_memory is not None):
        remedy = "Leave it out, or ask about this machine without --memory and --device-memory."
        raise UsageError("--probe", "measures this machine alone", remedy)
    with Terminal(stderr=True).status(LOADING) as status:
        found = planned(model, task_tokens, Path(), memory, device_memory)
        if probe:
            from node.plan.plan import probed

            found = probed(found, status.update)
    if json:
        print_json(found.as_json())
        return
    from node.plan.table import lines

    for line in lines(found):
        say(line)
    say(as_typed(f"next: swarm-node init --model {quote(model)} FOLDER"))


def planned(
    model: str,
    tokens: int,
    folder: Path,
    memory: float | None = None,
    device_memory: float | None = None,
) -> Plan:
    """A plan for this machine, or for one with other amounts of memory, in GiB.

    Raises:
        NodeError: there is no such model, or it does not fit.
    """
    from node.plan.cards import card
    from node.plan.machine import asked_for, this_machine
    from node.plan.plan import plan
    from node.policy.model_source import config_folder

    config_folder(model)  # what is not there is said before torch is loaded
    here = this_machine("auto", folder)
    gpu = None if device_memory is None else card(device_memory)
    return plan(model, asked_for(here, memory, gpu), tokens)
