"""A run as a dashboard reads it, from files alone: the node may work, here or elsewhere, or not."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from node.config.config import Config
from node.dashboard.authors import authors
from node.dashboard.feed import GONE, Event
from node.dashboard.groups import Groups, Wanted
from node.dashboard.health import Doctor, alarms
from node.dashboard.log_lines import last_lines
from node.dashboard.rounds import Rounds
from node.dashboard.updates import levels, updates
from node.errors import NodeError
from node.monitor.present_status import CRASHED, STOPPED, present_status
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder
from swarm.reputation import read_accounts

AT_ONCE = 20
"""Rounds that one look tells of, the latest."""
OWN = ("peer_id", "addresses", "reach", "swarm_id", "swarm_name", "state", "record")
"""What is told of this node beside its peers."""
NONE = "none"
"""State of a folder that no node has run in."""
ENDED = (STOPPED, CRASHED, NONE)


class RunView:
    """Reads what a run folder holds; its calls may come from several threads.

    Args:
        version: of this program.
    """

    def __init__(self, folder: RunFolder, config: Config, version: str) -> None:
        self.folder = folder
        self.config = config
        self._version = version
        self._lock = threading.Lock()
        self._rounds = Rounds(folder.metrics)
        self._doctor = Doctor(folder, config)
        self._groups = Groups(folder.groups)
        self._last: int | None = None
        self._news: deque[RoundRecord] = deque(maxlen=AT_ONCE)
        self._state: str | None = None
        self._told: float | None = None

    def status(self) -> dict[str, Any]:
        """What ``swarm-node status --json`` prints, and the version of this program.

        Where no node has reported yet the state is "none".
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
            status["dashboard"] = str(url).partition("?")[0]  # the token is for the terminal
        return {**status, "version": self._version}

    def table(self, since: int, points: int) -> dict[str, Any]:
        """Rounds as columns; see :meth:`node.dashboard.rounds.Rounds.table`."""
        with self._lock:
            self._read_on()
            return self._rounds.table(since, points)

    def groups(self, wanted: Wanted) -> dict[str, Any]:
        """The newest groups that are wanted; see :mod:`node.dashboard.groups`."""
        with self._lock:
            self._groups.look()
            return self._groups.find(wanted)

    def updates(self, since: int, points: int) -> dict[str, Any]:
        """What updates were made of; see :func:`node.dashboard.updates.updates`."""
        with self._lock:
            self._read_on()
            return updates(self._rounds, since, points)

    def levels(self, since: int, points: int) -> dict[str, Any]:
        """Rewards by family and level; see :func:`node.dashboard.updates.levels`."""
        with self._lock:
            self._read_on()
            return levels(self._rounds, since, points)

    def authors(self) -> dict[str, Any]:
        """Whoever gave groups; see :mod:`node.dashboard.authors`.

        Raises:
            JournalError: what is known of them cannot be read.
        """
        accounts, peers = read_accounts(self.folder.journal), self.status()["peers"]
        with self._lock:
            self._read_on()
            return {"authors": authors(self._rounds, accounts, peers, time.time())}

    def peers(self) -> dict[str, Any]:
        """This node, and whom it knows."""
        status = self.status()
        return {"self": {name: status.get(name) for name in OWN}, "peers": status["peers"]}

    def health(self) -> dict[str, Any]:
        """What may be wrong; see :mod:`node.dashboard.health`."""
        findings = self._doctor.findings()
        with self._lock:
            self._read_on()
            return {"findings": findings, "alarms": alarms(self._rounds, self.folder)}

    def log(self, lines: int) -> dict[str, Any]:
        """The end of the log."""
        return {"lines": last_lines(self.folder.log, lines)}

    def record(self) -> RoundRecord | None:
        """Of the latest round; None before the first."""
        with self._lock:
            self._read_on()
            return self._rounds.latest[-1] if self._rounds.latest else None

    def begin(self, last: int | None, first: bool) -> list[Event]:
        """What a new listener is told: how the run is, and the latest rounds since ``last``.

        Args:
            first: nobody else listens, so that :meth:`look` has been asked of nothing so far.
        """
        events = [Event("status", self.status())]
        with self._lock:
            self._read_on()
            if first:
                self._news.clear()
                self._groups.look()
                self._last = self._groups.last
            latest = [] if last is None else [r for r in self._rounds.latest if r.round > last]
        return events + [_round(record) for record in latest[-AT_ONCE:]]

    def look(self) -> list[Event]:
        """What has happened since the last look."""
        with self._lock:
            self._read_on()
            events = [_round(record) for record in self._news]
            self._news.clear()
            self._groups.look()
            if self._groups.last != self._last:
                events.append(Event("groups", {"last": self._groups.last}))
            self._last = self._groups.last
        status = self.status()
        state, told = str(status["state"]), status.get("time")
        if (state, told) != (self._state, self._told):
            events.append(Event("status", status))
            if state in ENDED and self._state not in (None, *ENDED):
                events.append(Event(GONE, {}))
        self._state, self._told = state, told
        return events

    def _read_on(self) -> None:
        self._news.extend(self._rounds.look())


def _round(record: RoundRecord) -> Event:
    return Event("round", record.to_dict(), record.round)
