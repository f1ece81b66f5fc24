"""What the process that commands are forked from has done: the imports, and typer's tree.

``multiprocessing`` imports this module once, in its fork server, which ignores an ImportError. Each
command imports it again, which costs nothing if it is there, and reports the error if it is not.
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
    """Return the tree that every command would build again."""
    return _tree if wanted is app else _build(wanted)


typer.main.get_command = _built
