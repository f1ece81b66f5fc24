"""A dashboard of a run folder, and clients with real connections."""

import http.client
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from node.config.config import Config
from node.dashboard.server import Dashboard
from node.monitor.record import RoundRecord
from node.monitor.sinks import JsonLinesFile
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from tests.node.monitor.test_monitor import RECORD

ANYWHERE = "127.0.0.1:0"
PATIENCE = 300.0


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


def get(
    port: int, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with closing(connection):
        connection.request(method, path, headers=dict(headers or {}))
        found = connection.getresponse()
        names = {name.lower(): value for name, value in found.getheaders()}
        return Answer(found.status, names, found.read())


@dataclass
class Site:
    """A running dashboard and the addresses that it printed."""

    folder: RunFolder
    counters: Counters
    told: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.told[-1].split(":")[-1].split("/")[0])

    def get(self, path: str, *how: Any, **options: Any) -> Answer:
        return get(self.port, path, *how, **options)

    def json(self, path: str) -> Any:
        answer = self.get(path)
        assert answer.status == 200, answer.body
        return answer.json

    def connect(self, receive: int = 0) -> socket.socket:
        """Open a plain connection whose receive buffer has ``receive`` bytes."""
        bare = socket.socket()
        if receive:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        bare.settimeout(PATIENCE)
        bare.connect(("127.0.0.1", self.port))
        return bare

    def stream(self, last: int | None = None) -> "Stream":
        return Stream(self, last)


class Stream:
    def __init__(self, site: Site, last: int | None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        self._connection.request("GET", "/api/v1/events", headers=headers)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.buffering = self._answer.headers["x-accel-buffering"]

    def next(self) -> tuple[str, Any]:
        """Return name and data of the next event."""
        lines = []
        while line := self._answer.readline().decode().rstrip("\n"):
            lines.append(line)
        if lines and lines[0].startswith(":"):
            return self.next()
        if not lines:
            raise EOFError
        values = dict(line.split(": ", 1) for line in lines)
        return values["event"], json.loads(values["data"])

    def until(self, name: str) -> Any:
        """Return the data of the next event of that name."""
        while True:
            found, data = self.next()
            if found == name:
                return data

    def close(self) -> None:
        self._connection.close()


def closed(connection: socket.socket, seconds: float = 0.01) -> bool:
    """Return whether the other end closes a connection in time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@contextmanager
def served(root: Path, wanted: bool | str = ANYWHERE, **overrides: Any) -> Iterator[Site]:
    """Serve a dashboard of the run folder ``root``, which need not exist."""
    site = Site(RunFolder(root), Counters())
    config = Config.with_overrides(overrides)
    with closing(Dashboard(site.folder, config, wanted, site.counters, site.told.append)):
        yield site


def told(root: Path, path: str) -> Any:
    """Return the dashboard's answer to ``/api/v1/`` plus the path."""
    with served(root) as site:
        return site.json(f"/api/v1/{path}")


def write_rounds(folder: RunFolder, rounds: Iterable[int], **values: Any) -> None:
    """Write round records; callable values are called with the round's number."""
    folder.create()
    with closing(JsonLinesFile(folder.metrics, 64 << 20)) as file:
        for number in rounds:
            file.write(record(number, **values))


def record(number: int, **values: Any) -> RoundRecord:
    made = {name: v(number) if callable(v) else v for name, v in values.items()}
    return replace(RECORD, **{"round": number, "policy_step": number, **made})
