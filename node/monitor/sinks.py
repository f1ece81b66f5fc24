"""Which sinks a node writes to, by its config."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.config.config import Config
from node.config.registry import LOGGERS
from node.errors import NodeError
from node.monitor.history import Line, files, parsed, thinned
from node.monitor.live import LivePanel, LoggedLines, PlainLines
from node.monitor.logs import STDOUT, goes_to
from node.monitor.record import RoundRecord
from node.monitor.rollouts import LastRollouts, RolloutsFile
from node.monitor.terminal import Terminal
from node.storage.atomic_files import replacing, write_error
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.common.util import make_private

log = logging.getLogger(__name__)

MOST_UNWRITTEN = 4096
"""Lines that wait for room on the disk."""


class JsonLinesFile:
    """Appends records to a file of bounded size that goes on spanning the whole run.

    When it is full, older rounds are thinned until half of it is free (:mod:`.thinning`); the
    thinned file takes the place of the full one in one step, so that a crash finds either.

    Rounds that were lost in a crash and done again stand in it twice; the later line counts.

    Args:
        most_bytes: it never has more, but for a moment as much as half of that lies beside it.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path = path
        self._most = most_bytes
        self._unwritten: deque[bytes] = deque(maxlen=MOST_UNWRITTEN)
        _drop_half_line(path)
        # unbuffered: what failed to be written must not be tried again by close()
        self.file = make_private(path).open("ab", buffering=0)

    def write(self, record: RoundRecord) -> None:
        """Append one line and hand it to the system.

        Raises:
            NodeError: it cannot be written, as when there is no space for it; the next call tries
                again.
        """
        self._unwritten.append(_line(record))
        try:
            while self._unwritten:
                self._append(self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            raise write_error(self._path, error) from error

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _append(self, line: bytes) -> None:
        if self.file.tell() + len(line) > self._most or len(files(self._path)) > 1:
            self._thin()
        begin = self.file.tell()
        if self.file.write(line) < len(line):
            self.file.truncate(begin)
            self.file.seek(begin)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _thin(self) -> None:
        full = files(self._path)
        with replacing(self._path) as draft:
            draft.writelines(_thinned(full, self._most // 2))
        for earlier in full[:-1]:
            earlier.unlink()
        self.file.close()
        self.file = self._path.open("ab", buffering=0)


class JsonLinesOutput:
    """Prints records to standard output, for other programs to read."""

    def write(self, record: RoundRecord) -> None:
        """Print one line."""
        sys.stdout.write(_line(record).decode())
        sys.stdout.flush()

    def close(self) -> None:
        """Standard output stays open."""


def _line(record: RoundRecord) -> bytes:
    return json.dumps(record.to_dict(), allow_nan=False).encode() + b"\n"


def _thinned(full: Sequence[Path], most: int) -> Iterator[bytes]:
    """The lines of these files that stay; what no reader could read does not."""
    kept = set(thinned([_look(line) for line in _lines(full)], most))
    return (line for place, line in enumerate(_lines(full)) if place in kept)


def _lines(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            yield from file


def _look(line: bytes) -> Line | None:
    try:
        record = parsed(line)
    except ValueError:
        log.warning("a damaged line is taken out of the records of rounds: %r", line[:80])
        return None
    return Line(record.round, record.reward_eval is not None, len(line))


def _drop_half_line(path: Path) -> None:
    """Cut what a killed process left behind the last line's end."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


PREFIX = "swarm_node_"
ADDRESS = "127.0.0.1"


class Prometheus(Collector):
    """Serves ``/metrics`` until closed.

    Every figure of the record is a gauge ``swarm_node_<name>``; refusals and other totals are the
    counters ``swarm_node_refused_total{reason}`` and ``swarm_node_events_total{event}``.

    Raises:
        NodeError: the port cannot be bound.
    """

    def __init__(self, port: int) -> None:
        self._record: RoundRecord | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, ADDRESS, registry)
        except OSError as error:
            raise NodeError(
                f"cannot serve metrics on {ADDRESS} ({error.strerror})",
                f"monitor.prometheus_port = {port}",
                "Choose a free port, or 0 for none.",
            ) from error

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.server_port)

    def write(self, record: RoundRecord) -> None:
        """Serve this record from now on."""
        self._record = record

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """The newest record's metrics; none before the first round."""
        return metrics(self._record)


def exposition(record: RoundRecord | None) -> tuple[bytes, str]:
    """A record's metrics as Prometheus reads them, and the type of that text."""
    registry = CollectorRegistry()
    registry.register(_Fixed(record))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def metrics(record: RoundRecord | None) -> Iterator[Metric]:
    """Every figure of a record; none where there is no record."""
    if record is None:
        return
    for name, value in record.scalars().items():
        yield GaugeMetricFamily(PREFIX + name, name.replace("_", " "), value)
    refused = CounterMetricFamily(f"{PREFIX}refused", "refused groups by reason", labels=["reason"])
    for reason, count in record.refused.items():
        refused.add_metric([reason], count)
    events = CounterMetricFamily(f"{PREFIX}events", "totals by name", labels=["event"])
    for event, total in record.counters.items():
        events.add_metric([event], total)
    yield refused
    yield events


class _Fixed(Collector):
    def __init__(self, record: RoundRecord | None) -> None:
        self._record = record

    def collect(self) -> Iterator[Metric]:
        return metrics(self._record)


class Sink(Protocol):
    """Takes one record a round, from one thread."""

    def write(self, record: RoundRecord) -> None:
        """Take one record."""

    def close(self) -> None:
        """Flush and release; harmless when called twice."""


def open_sinks(
    config: Config, folder: RunFolder, rollouts: LastRollouts, *, json: bool = False
) -> tuple[Sink, ...]:
    """Open the files of metrics and of rollouts, what the config asks for, and a view on standard
    output.

    The view is a live panel on a terminal, else a line a round, which is logged where standard
    output is the node's log; JSON lines with ``json``.

    Raises:
        NodeError: a port is taken or a package missing; what was opened is closed again.
    """
    monitor = config.monitor
    with ExitStack() as stack:
        sinks: list[Sink] = []

        def add(sink: Sink) -> None:
            sinks.append(sink)
            stack.callback(sink.close)

        add(JsonLinesFile(folder.metrics, monitor.metrics_mib << 20))
        add(RolloutsFile(folder.rollouts, rollouts))
        if monitor.prometheus_port:
            add(Prometheus(monitor.prometheus_port))
        for name in monitor.loggers:
            add(LOGGERS.open(name, monitor.loggers_options.get(name, {}), folder))
        add(_view(config, folder, rollouts, json))
        stack.pop_all()
    return tuple(sinks)


def _view(config: Config, folder: RunFolder, rollouts: LastRollouts, json: bool) -> Sink:
    if json:
        return JsonLinesOutput()
    if goes_to(STDOUT, folder.log):
        return LoggedLines()
    console, rounds = Terminal(), config.schedule.rounds
    if config.monitor.live and console.is_terminal:
        return LivePanel(config.node.name, rounds, rollouts, console)
    return PlainLines(rounds, console)


class Fenced:
    """A sink of which nothing is raised: a closed terminal or a full disk ends no training.

    Its failures are counted (``sink_failures{sink}``), and the first is told in the log.
    """

    def __init__(self, sink: Sink, counters: Counters) -> None:
        self._sink = sink
        self._counters = counters
        self._name = type(sink).__name__
        self._told = False

    def write(self, record: RoundRecord) -> None:
        """Hand on one record."""
        self._fence(lambda: self._sink.write(record))

    def close(self) -> None:
        """Close the sink."""
        self._fence(self._sink.close)

    def _fence(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._counters.add("sink_failures", sink=self._name)
            if not self._told:
                # What names its remedy needs no trace.
                trace = None if isinstance(error, NodeError) else error
                text = "%s failed: %s; what else it cannot take is counted, and told no more"
                log.error(text, self._name, error, exc_info=trace)
            self._told = True
