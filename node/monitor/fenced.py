"""What keeps a sink that fails from anything else."""

from __future__ import annotations

import logging
from collections.abc import Callable

from node.errors import NodeError
from node.monitor.record import RoundRecord
from node.monitor.sink import Sink
from swarm.common.counters import Counters

log = logging.getLogger(__name__)


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
