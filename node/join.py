"""``swarm-node join``: run a node in its folder until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import typer

from node.config import Config
from node.membership import Membership
from node.monitor.sinks import open_sinks
from node.participant import Participant
from node.run_folder import RunFolder
from node.run_options import RunOptions
from node.status import StatusFile

log = logging.getLogger(__name__)


def run(config: Config, folder: RunFolder, options: RunOptions) -> None:
    """Join and train; Ctrl-C and SIGTERM end it after the round, with a checkpoint.

    Raises:
        NodeError: this node cannot start or cannot go on; what it learned is in the last
            checkpoint.
    """
    with stopping() as stop, folder.locked(), ExitStack() as stack:
        node = stack.enter_context(Participant(config, folder))
        announce(node.membership, options)
        for note in (*node.notes, *node.membership.notes):
            typer.echo(note, err=options.json)
        status = StatusFile(folder, node.membership)
        status.write(None)
        for sink in (*open_sinks(config, folder, json=options.json), status):
            stack.callback(sink.close)
            node.recorder.add(sink)
        node.rounds.run(config.schedule.rounds, stop)


def announce(membership: Membership, options: RunOptions) -> None:
    """Say who this is and how others get here."""
    status = membership.status()
    name = membership.manifest.name
    typer.echo(
        f"{status.peer_id} in swarm {name!r} {membership.swarm_id.hex()[:16]}", err=options.json
    )
    for address in status.addresses:
        typer.echo(f"others join with: swarm-node join --peers {address}", err=options.json)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; the second Ctrl-C interrupts at once."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        log.info("stopping after this round (%s)", signal.Signals(number).name)

    before = {n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
