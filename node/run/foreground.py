"""What every command that runs a node does around it: say how to get there, and stop in order."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from node.monitor.printable import say
from node.network.membership import Membership
from node.run.run_options import RunOptions

log = logging.getLogger(__name__)


def announce(membership: Membership, options: RunOptions) -> None:
    """Say who this is and how others get here."""
    status = membership.status()
    name = membership.manifest.name
    say(f"{status.peer_id} in swarm {name!r} {membership.swarm_id.hex()[:16]}", err=options.json)
    for address in status.addresses:
        say(f"others join with: swarm-node join --peers {address}", err=options.json)


class Stop(threading.Event):
    """Set by Ctrl-C or SIGTERM while a node works, to be looked at between two rounds.

    Before the work, and by a second signal within it, what goes on is interrupted at once; the
    closing that follows is interrupted by nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._works = False
        self._closes = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work, which ends at the next round's end; closing begins behind it."""
        self._works = True
        try:
            yield
        finally:
            self._closes = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._closes:
            return
        if self._works and not self.is_set():
            self.set()
            log.info("stopping after this round (%s)", signal.Signals(number).name)
            return
        self._closes = True
        raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM stop what happens in the block, in order."""
    stop = Stop()
    before = {n: signal.signal(n, stop.on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
