"""What node commands share: run options, announcement, orderly stop, dashboard."""

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


def announce(membership: Membership, tell: Callable[[str], None], *, watches: bool = False) -> None:
    """Print who this node is and, unless it only watches, how others join through it."""
    status = membership.status()
    swarm = f"swarm {membership.manifest.name!r} {membership.swarm_id.hex()[:16]}"
    if watches:
        tell(f"watching {swarm}, as {status.peer_id}")
        return
    tell(f"{status.peer_id} in {swarm}")
    for address in status.addresses:
        tell(f"others join with: swarm-node join --peers {address}")


class Stop(threading.Event):
    """An event that :data:`STOPS` set during the work, checked between two rounds.

    Before the work, and by a second signal during it, the current step is interrupted immediately.
    Nothing interrupts the closing that follows.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self._printing: list[threading.Thread] = []
        self._works = False
        self._closes = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark the work, which a first signal ends after the round; closing follows."""
        self._works = True
        try:
            yield
        finally:
            self._closes = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
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
        """Print on another thread: this one may be in the middle of a line of its own."""
        line = f"{what} ({signal.Signals(number).name})"
        self._printing.append(threading.Thread(target=self._tell, args=(line,)))
        self._printing[-1].start()

    def wait_for_output(self) -> None:
        """Wait until all messages are printed."""
        for thread in self._printing:
            thread.join()


@contextmanager
def stopping(tell: Callable[[str], None] = say) -> Iterator[Stop]:
    """Let :data:`STOPS` end the block in order; ``tell`` shows messages to the user."""
    stop = Stop(tell)
    before = {n: signal.signal(n, stop.on_signal) for n in STOPS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.wait_for_output()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run that are not settings of the node.

    With ``json``, standard output carries only JSON lines. ``swarm`` is the id, in hex, of the
    swarm to move to, or its beginning; empty to stay.
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
    """Serve the node's dashboard during the block, if its config asks for it.

    A failure to serve is logged and counted (``dashboard_failures``).
    """
    wanted = config.monitor.dashboard
    if not wanted:
        yield
        return
    # imported late: a node without a dashboard does not need it
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
