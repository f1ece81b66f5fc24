"""Preload of the fork server: the imports of commands and typer's command tree.

The fork server of ``multiprocessing`` imports this module once and ignores an ImportError. Each
command imports it again. That costs nothing after a success, and reports the error otherwise.
"""

from importlib import import_module

import typer.main

from node.cli.program import app

LOADED = (
    "multiprocessing.synchronize",
    "node.cli.options",
    "node.demo.run",
    "node.doctor.checks",
    "node.engines.registry",
    "node.engines.transformers.engine",
    "node.evaluation.comparison",
    "experiments.hostile_report",
    "experiments.report",
    "node.learner.losses",
    "node.learner.off_policy",
    "node.run.preflight",
    "node.run.node",
    "node.run.untrained",
    "rich._emoji_codes",
    "rich.status",
    "swarm.transport.subprocess.transport",
    "swarm.transport.hivemind.transport",
    "torch.utils.serialization.config",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
)

for _name in LOADED:
    import_module(_name)

_build = typer.main.get_command
_tree = _build(app)


def _built(wanted: typer.Typer) -> typer.core.TyperGroup:
    """Return the prebuilt command tree of the program."""
    return _tree if wanted is app else _build(wanted)


typer.main.get_command = _built
