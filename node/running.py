"""What every command that runs a node does around it: say how to get there, and stop in order."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from node.membership import Membership
from node.run_options import RunOptions

log = logging.getLogger(__name__)


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
