"""``swarm-node export``: the trained model, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json
from node.monitor.printable import say


def command(
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the LoRA adapter alone, in peft's layout.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write the newest checkpoint as a folder that transformers and vLLM load."""
    from node.policy.checkpoint_policy import export

    node = open_node(config)
    loaded = export(node.config, node.folder, out, adapter=adapter)
    for note in loaded.notes:
        say(note, err=True)
    if json:
        print_json({"model": str(out), "checkpoint": str(loaded.path), "state": loaded.state})
        return
    say(f"wrote {out} from {loaded.path.name}")
