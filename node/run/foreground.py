"""What every command that runs a node does around it: say how to get there, and stop in order."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from node.config.config import Config
from node.errors import NodeError
from node.monitor.output import say
from node.network.membership import Membership
from node.run.status import StatusFile
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C, a service manager's stop, and a terminal that is closed."""


def announce(membership: Membership, tell: Callable[[str], None]) -> None:
    """Say who this is and how others get here."""
    status = membership.status()
    name = membership.manifest.name
    tell(f"{status.peer_id} in swarm {name!r} {membership.swarm_id.hex()[:16]}")
    for address in status.addresses:
        tell(f"others join with: swarm-node join --peers {address}")


class Stop(threading.Event):
    """Set by one of :data:`STOPS` while a node works, to be looked at between two rounds.

    Before the work, and by a second signal within it, what goes on is interrupted at once; the
    closing that follows is interrupted by nothing.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self._words: list[threading.Thread] = []
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
            self._say("stopping in order; once more stops at once", number)
            return
        self._closes = True
        self._say("stopping at once", number)
        raise KeyboardInterrupt

    def _say(self, what: str, number: int) -> None:
        """On another thread: this one may be in the middle of a line of its own."""
        line = f"{what} ({signal.Signals(number).name})"
        self._words.append(threading.Thread(target=self._tell, args=(line,)))
        self._words[-1].start()

    def said(self) -> None:
        """Wait until everything is said."""
        for words in self._words:
            words.join()


@contextmanager
def stopping(tell: Callable[[str], None] = say) -> Iterator[Stop]:
    """Let :data:`STOPS` end what happens in the block, in order.

    Args:
        tell: shows a line to whoever sent the signal.
    """
    stop = Stop(tell)
    before = {n: signal.signal(n, stop.on_signal) for n in STOPS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.said()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is no setting of the node itself.

    Attributes:
        json: standard output carries JSON lines and nothing else.
        swarm: id of the swarm to move to, in hex, or how it begins; empty to stay.
    """

    json: bool = False
    swarm: str = ""


log = logging.getLogger(__name__)


@contextmanager
def dashboard(
    config: Config,
    folder: RunFolder,
    counters: Counters,
    status: StatusFile,
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Serve the page of a node, if its config asks for it, as long as the block lasts.

    Where it cannot be served that is said, and counted (``dashboard_failures``).

    Args:
        status: keeps saying where it is found.
        tell: told that once.
    """
    wanted = config.monitor.dashboard
    if not wanted:
        yield
        return
    # late: a node without a dashboard needs none of it
    from node.dashboard.server import Dashboard

    try:
        served = Dashboard(folder, config, wanted, counters, status.serve)
    except NodeError as error:
        counters.add("dashboard_failures")
        log.warning("%s", error)
        yield
        return
    tell(f"look at it in a browser: {served.url}")
    try:
        yield
    finally:
        served.close()
