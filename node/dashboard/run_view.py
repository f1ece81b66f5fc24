"""The dashboard's views of a run, its health and its event feed, read from files."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import psutil
from anyio import to_thread

from node.config.config import Config
from node.dashboard.groups import Groups, Wanted, authors, progress
from node.dashboard.rounds import Rounds, plain
from node.doctor import checks
from node.doctor.checks import check_ports, reported_reach
from node.doctor.files import Check, check_pinned
from node.errors import NodeError
from node.monitor.logs import LogTail
from node.monitor.output import printable
from node.monitor.record import RoundRecord
from node.monitor.sinks import Figures
from node.storage.run_folder import CRASHED, STOPPED, RunFolder, present_status
from swarm.common.counters import Counters
from swarm.reputation import read_accounts

log = logging.getLogger(__name__)

FRESH_SECONDS = 60.0  # how long the doctor's results stay valid
RECENT = 20
BEFORE = 200  # rounds between the two mean lengths compared, each over RECENT rounds
DRIFT = 1.5
CUT = 0.5
LITTLE_MEMORY = 0.95
OK, WARN, FAIL = "ok", "warn", "fail"


class Doctor:
    """The doctor's checks, run at most once a minute, except those that dial peers."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self._folder = folder
        self._config = config
        self._lock = threading.Lock()
        self._found: list[dict[str, Any]] = []
        self._at = float("-inf")

    def findings(self) -> list[dict[str, Any]]:
        """Return each check with its level, result and remedy."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_SECONDS:
                self._found = [
                    {
                        "level": check.level,
                        "what": check.check,
                        "found": check.found,
                        "remedy": check.remedy or None,
                    }
                    for check in self._look()
                ]
                self._at = time.monotonic()
            return self._found

    def _look(self) -> list[Check]:
        config, folder = self._config, self._folder
        results = [*checks.check_packages(), checks.check_transport(config.network)]
        if "torch" in sys.modules:  # loading it would take longer than all other checks
            results.append(checks.check_device(config.policy.device))
        results += [checks.check_engine(config.engine.backend), checks.check_shared_memory()]
        results += [checks.check_clock(), checks.check_sandbox()]
        results += check_pinned(config, folder)
        if folder.root.is_dir():
            results += [checks.check_disk(folder), checks.check_key(folder)]
            results += check_ports(config, folder)
        return results + (reported_reach(folder) if folder.holder() is not None else [])


@dataclass(frozen=True, slots=True)
class Alarm:
    name: str
    means: str  # its meaning, and the remedy
    measure: Callable[[Rounds, RunFolder], float | None]  # None if nothing was measured
    level: Callable[[float], str] = lambda count: WARN if count else OK

    def to_dict(self, rounds: Rounds, folder: RunFolder) -> dict[str, Any]:
        """Measure, and convert to plain values for JSON; an unmeasured value is ok."""
        value = self.measure(rounds, folder)
        level = OK if value is None else self.level(value)
        return {"name": self.name, "level": level, "means": self.means, "value": value}


def alarms(rounds: Rounds, folder: RunFolder, widest: float) -> list[dict[str, Any]]:
    """Return every alarm; ``widest`` is the limit of the train-inference mismatch."""
    gap = Alarm(
        "engine gap",
        "Train-inference mismatch: mean difference between the engine's and the learner's "
        f"log-probs, in nats per token, at equal weights. Above {widest:g}, the number format "
        "does not explain it: try another engine.backend.",
        _figure("logprob_mismatch"),
        lambda gap: WARN if gap > widest else OK,
    )
    return [alarm.to_dict(rounds, folder) for alarm in (gap, *ALARMS)]


def _counter(name: str) -> Callable[[Rounds, RunFolder], float | None]:
    def count(rounds: Rounds, folder: RunFolder) -> float | None:
        if not rounds.latest:
            return None
        counters = rounds.latest[-1].counters
        return sum(n for key, n in counters.items() if key.partition("{")[0] == name)

    return count


def _figure(name: str) -> Callable[[Rounds, RunFolder], float | None]:
    return lambda rounds, folder: getattr(rounds.latest[-1], name) if rounds.latest else None


def _drift(rounds: Rounds, folder: RunFolder) -> float | None:
    lengths = rounds.column("mean_length")
    recent, previous = lengths[-RECENT:], lengths[-BEFORE - RECENT : -BEFORE]
    if not len(previous) or np.isnan(previous).all() or np.isnan(recent).all():
        return None
    earlier = float(np.nanmean(previous))
    return float(np.nanmean(recent)) / earlier if earlier else None


ALARMS = (
    Alarm(
        "forgetting",
        "Number of times that the held-out reward fell far below its best. Decrease learner.lr "
        "or mixture.external, or run: swarm-node rollback --to best",
        _counter("forgetting_alarms"),
    ),
    Alarm(
        "length drift",
        f"Mean completion length, compared with {BEFORE} rounds earlier. If the length changes "
        "much without more reward, the policy drifts: decrease learner.lr.",
        _drift,
        lambda ratio: OK if 1 / DRIFT <= ratio <= DRIFT else WARN,
    ),
    Alarm(
        "cut answers",
        "Fraction of completions truncated at the length limit. Increase engine.max_new_tokens "
        "if it stays high.",
        _figure("truncated"),
        lambda share: WARN if share > CUT else OK,
    ),
    Alarm(
        "refused steps",
        "Optimizer steps skipped since the start because loss or gradient was not finite. "
        "Decrease learner.lr.",
        _counter("steps_refused"),
    ),
    Alarm(
        "failed rounds",
        "Rounds that failed since the start. The log below has the stack traces.",
        _counter("rounds_failed"),
    ),
    Alarm(
        "lost records",
        "Records since the start that a file, a view or a logger failed to write.",
        _counter("sink_failures"),
    ),
    Alarm(
        "disk",
        "Free bytes on the disk of the run folder. If the disk is full, the node stops at its "
        "last checkpoint.",
        lambda rounds, folder: (
            shutil.disk_usage(folder.root).free if folder.root.is_dir() else None
        ),
        lambda left: FAIL if left < checks.NO_DISK else WARN if left < checks.LITTLE_DISK else OK,
    ),
    Alarm(
        "memory",
        "Used fraction of this machine's memory. Decrease learner.micro_batch_tokens or "
        "mixture.pool_groups, or stop other programs.",
        lambda rounds, folder: psutil.virtual_memory().percent / 100.0,
        lambda share: WARN if share > LITTLE_MEMORY else OK,
    ),
)


STREAMS = 32  # maximum open event streams
WAITING = 64  # queued events per listener; beyond that the oldest is dropped
LOOK_SECONDS = 0.5
QUIET_SECONDS = 15.0


class Event(NamedTuple):
    """One event; ``number`` is the round's number, if it is a round."""

    name: str
    data: Any
    number: int | None = None

    def text(self) -> bytes:
        """Encode as a server-sent event (HTML, 9.2.5)."""
        number = "" if self.number is None else f"id: {self.number}\n"
        return f"event: {self.name}\n{number}data: {plain(self.data)}\n\n".encode()


GONE = "gone"


class Feed:
    """A broadcaster of a run's events, which are polled on a thread while there are listeners."""

    def __init__(self, run: RunView) -> None:
        self._run = run
        self._listeners: set[asyncio.Queue[Event | None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether no more listeners are accepted."""
        return len(self._listeners) >= STREAMS

    async def listen(self, last: int | None) -> AsyncGenerator[bytes, None]:
        """Stream events to one listener until the feed is closed."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(WAITING)
        is_first = not self._listeners
        self._listeners.add(queue)
        try:
            for event in await to_thread.run_sync(self._run.first_events, last, is_first):
                yield event.text()
            if self._closed:
                queue.put_nowait(None)
            elif self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll())
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), QUIET_SECONDS)
                except TimeoutError:
                    yield b": nothing new\n\n"
                    continue
                if message is None:
                    yield Event(GONE, {}).text()
                    return
                yield message.text()
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """End all streams; call on the loop of the listeners."""
        self._closed = True
        for queue in self._listeners:
            _put(queue, None)

    async def _poll(self) -> None:
        while self._listeners and not self._closed:
            try:
                events = await to_thread.run_sync(self._run.new_events)
            except NodeError as error:
                log.warning("the dashboard cannot read the run: %s", error)
                events = []
            for queue in tuple(self._listeners):
                for event in events:
                    _put(queue, event)
            await asyncio.sleep(LOOK_SECONDS)


def _put(queue: asyncio.Queue[Event | None], event: Event | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)


MOST_BYTES, MOST_LINES = 256 << 10, 1000  # of the log in an answer
AT_ONCE = 20  # maximum rounds per look, the latest
# Facts about this node beside its peers.
OWN = ("peer_id", "addresses", "reach", "swarm_id", "swarm_name", "state", "record")
NONE = "none"  # state of a folder in which no node has run
ENDED = (STOPPED, CRASHED, NONE)


class RunView:
    """A thread-safe reader of a run folder."""

    def __init__(
        self, folder: RunFolder, config: Config, version: str, counters: Counters | None = None
    ) -> None:
        self.folder = folder
        self.config = config
        self._version = version
        self._counters = counters or Counters()  # of this process
        self._lock = threading.Lock()
        self._rounds = Rounds(folder.metrics)
        self._doctor = Doctor(folder, config)
        self._groups = Groups(folder.groups)
        # What the latest events contained, and what the next ones will.
        self._last_group: int | None = None
        self._unsent: deque[RoundRecord] = deque(maxlen=AT_ONCE)
        self._last_status: tuple[str | None, float | None] = None, None  # state and time

    def status(self) -> dict[str, Any]:
        """Return the output of ``swarm-node status --json`` and this program's version.

        The state is "none" if no node has reported yet.
        """
        try:
            status = present_status(self.folder)
        except NodeError:
            if self.folder.status.exists():
                raise
            status = {
                **dict.fromkeys(("peer_id", "swarm_id", "swarm_name", "record", "pid", "age_s")),
                "addresses": [],
                "peers": [],
                "running": False,
                "state": NONE,
            }
        if (url := status.get("dashboard")) is not None:
            status["dashboard"] = str(url).partition("?")[0]  # the token is only for the terminal
        return {**status, "version": self._version}

    def rounds(
        self, view: Callable[[Rounds, int, int], dict[str, Any]], since: int, points: int
    ) -> dict[str, Any]:
        """Return a view of the rounds after ``since`` in at most ``points`` rows."""
        with self._reading() as rounds:
            return view(rounds, since, points)

    def progress(self) -> dict[str, Any]:
        """Return whether the node learns, see :func:`node.dashboard.groups.progress`."""
        with self._reading() as rounds:
            return progress(rounds, self.config.schedule)

    def groups(self, wanted: Wanted) -> dict[str, Any]:
        """Return matching groups, and the correction of peers' groups as it is now."""
        with self._lock:
            self._groups.look()
            return {**self._groups.find(wanted), "correction": self.config.mixture.correction}

    def authors(self) -> dict[str, Any]:
        """Return the authors of groups, or raise JournalError (unreadable accounts)."""
        accounts, peers = read_accounts(self.folder.journal), self.status()["peers"]
        with self._reading() as rounds:
            return {"authors": authors(rounds, accounts, peers, time.time())}

    def peers(self) -> dict[str, Any]:
        status = self.status()
        this_node, more = {name: status.get(name) for name in OWN}, status.get("peers_more") or 0
        return {"self": this_node, "peers": status["peers"], "more": more}

    def health(self) -> dict[str, Any]:
        findings = self._doctor.findings()
        with self._reading() as rounds:
            return {
                "findings": findings,
                "alarms": alarms(rounds, self.folder, self.config.widest_mismatch),
            }

    def log(self, lines: int) -> dict[str, Any]:
        if not self.folder.log.exists():
            return {"lines": []}
        with closing(LogTail(self.folder.log, most=MOST_BYTES)) as tail:
            return {"lines": list(map(printable, tail.last(lines)))}

    def figures(self) -> Figures | None:
        """Return those of the latest round; before the first, of the node that is this process."""
        with self._reading() as rounds:
            if rounds.latest:
                return Figures.of_round(rounds.latest[-1])
        status = self.status()
        is_own = status["running"] and status.get("pid") == os.getpid() and status.get("time")
        return Figures.without_rounds(status, self._counters) if is_own else None

    def first_events(self, last: int | None, first: bool) -> list[Event]:
        """Return a new listener's events: status and rounds since ``last``.

        If it is the ``first`` listener, the events before it are dropped.
        """
        events = [Event("status", self.status())]
        with self._reading() as rounds:
            if first:
                self._unsent.clear()
                self._groups.look()
                self._last_group = self._groups.last
            latest = [] if last is None else [r for r in rounds.latest if r.round > last]
        return events + [_round(record) for record in latest[-AT_ONCE:]]

    def new_events(self) -> list[Event]:
        """Return the events since the last call, for all listeners."""
        with self._reading():
            events = [_round(record) for record in self._unsent]
            self._unsent.clear()
            self._groups.look()
            if self._groups.last != self._last_group:
                events.append(Event("groups", {"last": self._groups.last}))
            self._last_group = self._groups.last
        status, (old_state, _) = self.status(), self._last_status
        state, timestamp = str(status["state"]), status.get("time")
        if (state, timestamp) != self._last_status:
            events.append(Event("status", status))
            if state in ENDED and old_state not in (None, *ENDED):
                events.append(Event(GONE, {}))
        self._last_status = state, timestamp
        return events

    @contextmanager
    def _reading(self) -> Iterator[Rounds]:
        with self._lock:
            self._unsent.extend(self._rounds.look())
            yield self._rounds


def _round(record: RoundRecord) -> Event:
    return Event("round", record.to_dict(), record.round)
