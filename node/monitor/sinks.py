"""Which sinks a node writes to, by its config."""

from __future__ import annotations

from contextlib import ExitStack

from node.config.config import Config
from node.config.kinds import LOGGERS
from node.monitor.jsonl import JsonLinesFile, JsonLinesOutput
from node.monitor.live import LivePanel, LoggedLines, PlainLines
from node.monitor.logs import STDOUT, goes_to
from node.monitor.prometheus import Prometheus
from node.monitor.rollouts import LastRollouts
from node.monitor.rollouts_file import RolloutsFile
from node.monitor.sink import Sink
from node.monitor.terminal import Terminal
from node.storage.run_folder import RunFolder


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
