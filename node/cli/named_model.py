"""The model that a command is about: a checkpoint of a node, or one that is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.cli.common import LOADING, Node, find_config, open_node
from node.monitor.terminal import say


@contextmanager
def loading() -> Iterator[Callable[[str], None]]:
    """Show that torch is loaded; what is yielded shows something else instead."""
    from node.monitor.terminal import Terminal

    with Terminal(stderr=True).status(LOADING) as status:
        yield status.update


def model_of(
    node: Node, *, model: str | None = None, step: int | None = None, best: bool = False
) -> tuple[Any, str]:
    """A :class:`node.policy.policy.Policy` and what it is called.

    Args:
        model: a folder, hub id or shipped model; without it, a checkpoint of the node.
        step, best: as in :func:`node.policy.checkpoint_policy.chosen`.

    Raises:
        NodeError: there is no such model or checkpoint.
    """
    with loading() as tell:
        from node.config.learning import PolicySection
        from node.policy.checkpoint_policy import checkpoint_policy, chosen
        from node.policy.policy import Policy

        wanted = node.config.policy
        if model:
            # Another model's chat template need not have the same switches.
            options = wanted.chat_options if model == wanted.model else {}
            named = PolicySection(
                model=model, dtype=wanted.dtype, device=wanted.device, chat_options=options
            )
            return Policy.load(named, tell=tell), model
        with chosen(node.folder, step=step, best=best) as loaded:
            for note in loaded.notes:
                say(note, err=True)
            return checkpoint_policy(wanted, loaded, tell), str(loaded.path)


def node_named(name: str) -> Node | None:
    """The node whose config file or folder this is; None where it is neither.

    Raises:
        NodeError: its config is wrong.
    """
    path = find_config(Path(name))
    is_node = path is not None and path.suffix == ".toml" and path.is_file()
    return open_node(path) if is_node else None
