"""Sinks for one record per round: JSON lines, choice by config; metrics for Prometheus."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.config.config import Config
from node.config.registry import LOGGERS
from node.errors import NodeError
from node.monitor.history import Line, parsed, thinned
from node.monitor.live import LivePanel, LoggedLines, PlainLines
from node.monitor.logs import STDOUT, goes_to
from node.monitor.record import RoundRecord, Sink, Terminal
from node.storage.atomic_files import append_whole, replacing, writing
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.common.util import make_private, plain_json

log = logging.getLogger(__name__)

MOST_UNWRITTEN = 4096  # lines that wait for disk space


class JsonLinesFile:
    """A sink that appends records to a bounded file, which spans the whole run.

    At ``most_bytes`` it is thinned to half (:func:`node.monitor.history.thinned`) and replaced in
    one step; a second file takes up to half meanwhile. For a repeated round, the later line counts.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path = path
        self._most = most_bytes
        self._unwritten: deque[bytes] = deque(maxlen=MOST_UNWRITTEN)
        if path.exists():  # a killed process may have left a partial last line
            with path.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        # Unbuffered, so that close() does not retry a failed write.
        self.file = make_private(path).open("ab", buffering=0)

    def write(self, record: RoundRecord) -> None:
        """Append one line, or raise NodeError (disk full); the next call tries again."""
        self._unwritten.append(_line(record))
        with writing(self._path):
            while self._unwritten:
                self._append(self._unwritten[0])
                self._unwritten.popleft()

    def close(self) -> None:
        self.file.close()

    def _append(self, line: bytes) -> None:
        if self.file.tell() + len(line) > self._most:
            self._thin()
        append_whole(self.file, line)

    def _thin(self) -> None:
        self.file.close()  # Windows replaces no open file
        try:
            with replacing(self._path) as draft, self._path.open("rb") as source:
                records = [line for pair in enumerate(source) if (line := _look(*pair))]
                kept = {line.number for line in thinned(records, self._most // 2)}
                source.seek(0)
                draft.writelines(line for number, line in enumerate(source) if number in kept)
        finally:
            self.file = self._path.open("ab", buffering=0)


class JsonLinesOutput(Sink):
    """A sink that prints records as JSON lines, for other programs to read."""

    def write(self, record: RoundRecord) -> None:
        sys.stdout.write(_line(record).decode())
        sys.stdout.flush()


def _line(record: RoundRecord) -> bytes:
    return plain_json(record.to_dict()).encode() + b"\n"


def _look(number: int, line: bytes) -> Line | None:
    try:
        record = parsed(line)
    except ValueError:
        log.warning("removed a damaged line from the records of rounds: %r", line[:80])
        return None
    return Line(number, record.round, record.reward_eval is not None, len(line))


PREFIX = "swarm_node_"


def resident_mb() -> float:
    """Return the memory of this process and its children, MB of 10**6 bytes.

    Where the system reports it (Linux), a page that n processes share counts as 1/n in each.
    """
    process = psutil.Process()
    total = 0
    for proc in (process, *process.children(recursive=True)):
        try:
            memory = proc.memory_full_info()
        except psutil.NoSuchProcess:
            continue
        total += getattr(memory, "pss", memory.rss)
    return float(total) / 1e6


REFUSED = "refused{reason="


def split_totals(counters: Counters) -> tuple[dict[str, int], dict[str, float]]:
    """Return the refused groups by reason, and the other totals by name."""
    totals = counters.snapshot()
    refused = {n.removeprefix(REFUSED).rstrip("}"): n for n in totals if n.startswith(REFUSED)}
    return (
        {reason: int(totals[name]) for reason, name in refused.items()},
        {name: total for name, total in totals.items() if not name.startswith(REFUSED)},
    )


@dataclass(frozen=True, slots=True)
class Figures(Collector):
    """A node's figures: gauges, refused groups by reason and other totals by name."""

    gauges: Mapping[str, float]
    refused: Mapping[str, float]
    events: Mapping[str, float]

    @classmethod
    def of_round(cls, record: RoundRecord) -> Figures:
        return cls(record.scalars(), record.refused, record.counters)

    @classmethod
    def without_rounds(cls, status: Mapping[str, Any], counters: Counters) -> Figures:
        """Return the figures of this process, a node that has done no round."""
        swarms = [peer.get("swarm_id") for peer in status["peers"]]
        swarm_id = status["swarm_id"]
        peers, unknown = swarms.count(swarm_id), swarms.count(None)
        extra = status.get("peers_more") or 0  # of this swarm: connected peers precede these
        gauges = {
            "time": float(status["time"]),
            "peers": float(peers + extra),
            "foreign_peers": float(len(swarms) - peers - unknown),
            "rss_mb": resident_mb(),
        }
        return cls(gauges, *split_totals(counters))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of :func:`exposition`."""
        for name, value in self.gauges.items():
            yield GaugeMetricFamily(PREFIX + name, name.replace("_", " "), value)
        totals = (
            ("refused", "refused groups by reason", "reason", self.refused),
            ("events", "totals by name", "event", self.events),
        )
        for name, help_text, label, counts in totals:
            family = CounterMetricFamily(PREFIX + name, help_text, labels=[label])
            for key, count in counts.items():
                family.add_metric([key], count)
            yield family


def exposition(figures: Figures | None) -> tuple[bytes, str]:
    """Return a node's figures in the Prometheus text format, and its content type.

    Every figure is a gauge ``swarm_node_<name>``. Refusals and other totals are the counters
    ``swarm_node_refused_total{reason}`` and ``swarm_node_events_total{event}``.
    """
    return generate_latest(figures) if figures else b"", CONTENT_TYPE_LATEST


def open_sinks(config: Config, folder: RunFolder, *, json: bool = False) -> tuple[Sink, ...]:
    """Open the file of metrics, configured sinks and a stdout view.

    The view is JSON lines (``json``), log lines, a live panel (terminal) or a line per round.
    Raises NodeError for a missing package, with all sinks closed.
    """
    monitor = config.monitor
    with ExitStack() as stack:
        sinks: list[Sink] = []

        def add(sink: Sink) -> None:
            sinks.append(sink)
            stack.callback(sink.close)

        add(JsonLinesFile(folder.metrics, monitor.metrics_mib << 20))
        for name in monitor.loggers:
            add(LOGGERS.open(name, monitor.loggers_options.get(name, {}), folder))
        add(_view(config, folder, json))
        stack.pop_all()
    return tuple(sinks)


def _view(config: Config, folder: RunFolder, json: bool) -> Sink:
    if json:
        return JsonLinesOutput()
    if goes_to(STDOUT, folder.log):
        return LoggedLines()
    console, rounds = Terminal(), config.schedule.rounds
    if config.monitor.live and console.is_terminal:
        return LivePanel(config.node.name, rounds, console)
    return PlainLines(rounds, console)


class SafeSink:
    """A wrapper that catches, logs and counts a sink's errors (``sink_failures``)."""

    def __init__(self, sink: Sink, counters: Counters) -> None:
        self._sink = sink
        self._counters = counters
        self._name = type(sink).__name__
        self._failed = False

    def write(self, record: RoundRecord) -> None:
        self._fence(lambda: self._sink.write(record))

    def close(self) -> None:
        self._fence(self._sink.close)

    def _fence(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a package's code, or a full disk: training continues
            self._counters.add("sink_failures", sink=self._name)
            if not self._failed:
                # An error that names its remedy needs no stack trace.
                trace = None if isinstance(error, NodeError) else error
                text = "%s failed: %s; further failures are counted but not logged"
                log.error(text, self._name, str(error).rstrip("."), exc_info=trace)
            self._failed = True
