"""The newest record as Prometheus metrics, as text or served on a local port."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.errors import NodeError
from node.monitor.record import RoundRecord

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
