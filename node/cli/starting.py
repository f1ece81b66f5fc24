"""What ``join`` and ``seed`` do before the node itself starts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.cli.common import Node, find_config, open_node
from node.monitor.terminal import say

NEW_FOLDER = Path("swarm-run")
WAY_BACK = ("network.lan", "network.peers")


def start(
    given: Path | None,
    overrides: Mapping[str, Any],
    *,
    json: bool = False,
    debug: bool = False,
    stop_on_eof: bool = False,
) -> Node:
    """The node of :func:`ready`, with its log open, which outlives its output."""
    from node.monitor.logs import drop_what_fails, start_logging

    node = ready(given, overrides, json=json)
    start_logging(node.folder.log, node.config.monitor.log_level, debug=debug)
    drop_what_fails()
    if stop_on_eof:
        interrupt_on_eof()
    return node


def ready(given: Path | None, overrides: Mapping[str, Any], *, json: bool = False) -> Node:
    """Read the node's config, or make a node in ./swarm-run; see that it has an identity.

    Of the overrides only where the peers are is written to a config that is made here: that is the
    way back, while the others are for this run.
    """
    from node.concurrency.threads import check_semaphores
    from node.config.config import Config
    from node.run.preflight import open_identity, prepare

    check_semaphores()
    path = find_config(given)
    if path is None:
        Config.with_overrides(overrides)  # a wrong one makes no node
        back = {key: value for key, value in overrides.items() if key in WAY_BACK}
        folder, identity = prepare(NEW_FOLDER, back)
        path = folder.config
        say(
            f"made a node in ./{NEW_FOLDER}: {identity.peer_id}; its settings are in {path}",
            err=json,
        )
    node = open_node(path, overrides)
    identity, made = open_identity(node.folder)
    if made:
        say(f"made an identity: {identity.peer_id}, kept in {node.folder.identity}", err=json)
    return node


def interrupt_on_eof() -> None:
    """Interrupt this process, as Ctrl-C does, once standard input is closed.

    A parent that holds the other end of the pipe thereby takes this process along, however the
    parent ends.
    """

    def wait() -> None:
        # Not through sys.stdin, whose lock a blocked thread would hold while the process ends.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, name="stop-on-eof", daemon=True).start()
