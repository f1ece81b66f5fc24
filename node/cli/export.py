"""``swarm-node export``: the trained model, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.checkpoint_options import BestOption, StepOption, check_choice
from node.cli.common import (
    LOADING,
    ConfigOption,
    DebugOption,
    JsonOption,
    open_node,
    print_json,
)
from node.monitor.terminal import say


def command(
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the LoRA adapter alone, in peft's layout.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="OWNER/NAME",
            help="Upload it to the model hub that you are logged in to, into a private repository "
            "where there is none of that name.",
            show_default=False,
        ),
    ] = None,
    step: StepOption = None,
    best: BestOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a checkpoint, the newest unless told otherwise, for transformers and vLLM to load."""
    check_choice(step, best)
    if push is not None:
        from node.evaluation.hub import check_pushable

        check_pushable(push)
    from node.monitor.terminal import Terminal

    node = open_node(config)
    with Terminal(stderr=True).status(LOADING) as status:
        from node.evaluation.exported import write_card
        from node.policy.checkpoint_policy import chosen, export

        with chosen(node.folder, step=step, best=best) as loaded:
            for note in loaded.notes:
                say(note, err=True)
            export(node.config, loaded, out, adapter=adapter, tell=status.update)
            write_card(node.config, node.folder, loaded, out, adapter=adapter)
    if not json:
        say(f"wrote {out} from {loaded.path.name}")
    address = _pushed(out, push) if push is not None else None
    if json:
        facts = {"model": str(out), "checkpoint": str(loaded.path), "state": loaded.state}
        print_json({**facts, "pushed": address})


def _pushed(out: Path, repo: str) -> str:
    from node.evaluation.hub import push

    address = push(out, repo)
    say(f"pushed it to {address}", err=True)
    return address
