"""A node's report to other commands, and what commands that run a node share."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from node.config.config import Config
from node.errors import NodeError
from node.monitor.output import say
from node.monitor.record import RoundRecord
from node.network.membership import Membership
from node.storage.run_folder import (
    PROFILE_KEYS,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    RunFolder,
    present_status,
)
from swarm.common.counters import Counters
from swarm.common.util import Say
from swarm.member import PeerInfo
from swarm.reputation import Account

log = logging.getLogger(__name__)

MOST_PEERS = 400  # in the report; one takes up to 2.6 KB, and keys are free


class StatusFile:
    """A sink that keeps ``status.json`` current; several threads may call it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._membership: Membership | None = None
        self._lock = threading.Lock()
        self._status: dict[str, Any] = {}
        self._pages: dict[str, str | None] = {"dashboard": None, "public": None}
        self._ended = False

    def start(self) -> None:
        """Report that this process starts, unless no process has reported before."""
        if not self._folder.status.exists():
            return
        with _logged("that this node starts"):
            self._status = self._folder.read_status()
            self._report(STARTING, pid=os.getpid())

    def run(self, membership: Membership) -> None:
        """Report that the node is a member and works."""
        self._membership = membership
        self.write(None)

    def write(self, record: RoundRecord | None) -> None:
        """Report the node after a round, or without a record before the first."""
        assert self._membership is not None, "run() comes first"
        membership, status = self._membership, self._membership.status()
        reach, ignored = status.reach, membership.accounts.ignored()
        # All at once: a query for each of thousands of peers takes longer than a short round.
        accounts = {account.author: account for account in membership.accounts.snapshot()}
        peers = _foremost(status.peers, accounts)
        self._report(
            STOPPING if self._status.get("state") == STOPPING else RUNNING,
            pid=os.getpid(),
            peer_id=status.peer_id,
            addresses=status.addresses,
            reach={"way": reach.way, "cause": reach.cause, "remedy": reach.remedy},
            swarm_id=membership.swarm_id.hex(),
            swarm_name=membership.manifest.name,
            record=record.to_dict() if record else self._status.get("record"),
            peers=[_peer(peer, accounts, ignored) for peer in peers],
            peers_more=len(status.peers) - len(peers),
        )

    def serve(self, url: str, page: str = "dashboard") -> None:
        """Report the address of the dashboard, or of the ``public`` page, from now on."""
        with _logged("where the page is"), self._lock:
            self._pages[page] = url
            if self._status and not self._ended:
                self._status |= {page: url}
                self._folder.write_status(self._status)

    def stop(self) -> None:
        """Report that the node is to stop, unless the folder is not its own."""
        with _logged("that this node stops"):
            if self._status:
                self._report(STOPPING)

    def close(self) -> None:
        """Report that the last round is done and the node is closing."""
        self._report(STOPPING)

    def end(self) -> None:
        """Report that the process has ended, in order or with an error."""
        with _logged("that this node has stopped"):
            if self._status:
                self._report(STOPPED)

    def _report(self, state: str, **fields: Any) -> None:
        with self._lock:
            if self._ended:
                return  # a signal is reported on its own thread, which may come last
            self._ended = state == STOPPED
            pages = dict.fromkeys(self._pages) if self._ended else self._pages
            self._status |= {**fields, "state": state, "time": time.time(), **pages}
            self._folder.write_status(self._status)


def _foremost(peers: Sequence[PeerInfo], accounts: Mapping[bytes, Account]) -> Sequence[PeerInfo]:
    """Return ``MOST_PEERS`` peers in their order: useful ones, then connected, then latest."""

    def rank(peer: PeerInfo) -> tuple[float, bool, int, float]:
        account = accounts.get(peer.author or b"") or Account(b"")
        return -account.reputation.earned, not peer.connected, -account.admitted, -peer.heard

    if len(peers) <= MOST_PEERS:
        return peers
    peer_ids = {peer.peer_id for peer in sorted(peers, key=rank)[:MOST_PEERS]}
    return [peer for peer in peers if peer.peer_id in peer_ids]


def _peer(
    peer: PeerInfo, accounts: Mapping[bytes, Account], ignored: frozenset[bytes]
) -> dict[str, Any]:
    author = peer.author or b""
    account = accounts.get(author) or Account(author)
    return {
        "peer_id": peer.peer_id,
        "author": peer.author.hex() if peer.author else None,
        "connected": peer.connected,
        "link": peer.link,
        "round_trip_s": peer.timing.round_trip if peer.timing else None,
        "clock_ahead_s": peer.timing.ahead if peer.timing else None,
        "swarm_id": peer.swarm.hex() if peer.swarm else None,
        **{key: getattr(peer.profile, key, "") or None for key in PROFILE_KEYS},
        "policy_step": peer.policy_step,
        "heard": peer.heard,
        # Also true of a new node, which has neither shared a group nor made a step.
        "bootstrap": peer.policy_step == 0 and not peer.groups and not account.admitted,
        "banned": author in ignored,
        **account.figures(time.time()),
    }


@contextmanager
def _logged(report: str) -> Iterator[None]:
    try:
        yield
    except NodeError as error:
        log.warning(f"saying {report} failed: %s", error)


NEW = "new"  # state of a node that never ran


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder; ``state`` is as in ``status.json``, or :data:`NEW`."""

    path: str
    state: str
    swarm_name: str | None
    swarm_id: str | None
    round: int | None  # rounds done; ``None`` before the first, and for a bootstrap node
    reward: float | None  # mean reward of the node's own completions in that round, 0 to 1
    size: int  # bytes of what the node keeps
    age_s: float | None  # seconds since its last report


def find_runs(root: Path, depth: int) -> tuple[list[Run], list[str]]:
    """List run folders (with a node's key) by path, and folders that cannot be read.

    It descends ``depth`` levels below ``root``, and skips links and hidden folders.
    """
    unreadable: list[str] = []
    runs: list[Run] = []
    for folder in sorted(_folders(root, depth, unreadable)):
        try:
            if (folder / "identity.key").is_file():
                runs.append(_run(RunFolder(folder)))
        except (NodeError, OSError):
            unreadable.append(str(folder))
    return runs, unreadable


def _folders(root: Path, depth: int, unreadable: list[str]) -> Iterator[Path]:
    yield root
    try:
        entries = [*os.scandir(root)] if depth else []
        names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        unreadable.append(str(root))
        return
    for name in names:
        if not name.startswith("."):
            yield from _folders(root / name, depth - 1, unreadable)


def _run(folder: RunFolder) -> Run:
    folder.check()
    is_new = folder.holder() is None and not folder.status.exists()
    status: dict[str, Any] = {"state": NEW} if is_new else present_status(folder)
    record = status.get("record") or {}
    return Run(
        path=str(folder.root),
        state=status["state"],
        swarm_name=status.get("swarm_name"),
        swarm_id=status.get("swarm_id"),
        round=record.get("round"),
        reward=record.get("reward_local"),
        size=folder.size(),
        age_s=status.get("age_s"),
    )


STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Ctrl-C, a service manager's stop, and a terminal that is closed.


def announce(membership: Membership, tell: Say, *, watches: bool = False) -> None:
    """Print who this node is and, unless it only watches, how others join through it."""
    status = membership.status()
    swarm = f"swarm {membership.manifest.name!r} {membership.swarm_id.hex()[:16]}"
    if watches:
        tell(f"observing {swarm}, as {status.peer_id}")
        return
    tell(f"{status.peer_id} in {swarm}")
    for address in status.addresses:
        tell(f"others join with: swarm-node join --peers {address}")


class Stop(threading.Event):
    """An event that :data:`STOPS` set during the work, checked between two rounds.

    Before the work, or a second time, they interrupt the step; closing is never interrupted.
    """

    def __init__(self, tell: Say, then: Callable[[], None]) -> None:
        super().__init__()
        self._tell, self._then = tell, then
        self.printing: list[threading.Thread] = []
        self._stops = ""  # how a first signal ends the work that is under way
        self._closes = False

    @contextmanager
    def working(self, stops: str = "stopping cleanly") -> Iterator[None]:
        """Mark the work, which a first signal ends after the round; closing follows."""
        self._stops = stops
        try:
            yield
        finally:
            self._closes = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._closes:
            return
        if self._stops and not self.is_set():
            self.set()
            hint = "; press Ctrl-C again to force quit" if number == signal.SIGINT else ""
            self._say(f"{self._stops}{hint}", number)
            return
        self._closes = True
        self._say("stopping now", number)
        raise KeyboardInterrupt

    def _say(self, text: str, number: int) -> None:
        """Print on another thread: this one may be in the middle of a line of its own."""
        line = f"{text} ({signal.Signals(number).name})"
        self.printing.append(threading.Thread(target=self._print, args=(line,)))
        self.printing[-1].start()

    def _print(self, line: str) -> None:
        self._tell(line)
        self._then()


@contextmanager
def stopping(tell: Say = say, then: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """Let :data:`STOPS` end the block in order; ``tell`` the user, ``then`` call this."""
    stop = Stop(tell, then)
    handlers = {n: signal.signal(n, stop.on_signal) for n in STOPS}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for thread in stop.printing:
            thread.join()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run that are not settings of the node.

    With ``json``, standard output carries only JSON lines. ``swarm`` is the id, in hex, of the
    swarm to move to, or its beginning; empty to stay. With ``baseline`` a new policy is tried on
    the tasks, and what follows is written to ``config`` if ``accept`` or the user says so.
    """

    json: bool = False
    swarm: str = ""
    baseline: bool = False
    accept: bool = False
    config: Path | None = None


@contextmanager
def dashboard(
    config: Config, folder: RunFolder, counters: Counters, status: StatusFile, tell: Say
) -> Iterator[None]:
    """Serve any configured dashboard; log and count failures (``dashboard_failures``)."""
    wanted = config.monitor.dashboard
    if not wanted:
        yield
        return
    # imported late: a node without a dashboard does not need it
    from node.dashboard.server import Dashboard

    try:
        server = Dashboard(folder, config, wanted, counters, status.serve)
    except NodeError as error:
        counters.add("dashboard_failures")
        log.warning("%s", error)
        yield
        return
    tell(f"dashboard: {server.url}")
    with closing(server):
        yield
