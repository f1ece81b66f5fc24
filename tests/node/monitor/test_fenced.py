from __future__ import annotations

import logging

from node.monitor.record import RoundRecord
from node.monitor.sinks import Fenced
from swarm.common.counters import Counters
from tests.node.monitor.test_monitor import RECORD


class Broken:
    """Takes nothing until it is mended, and cannot be closed."""

    def __init__(self) -> None:
        self.mended = False
        self.taken: list[RoundRecord] = []

    def write(self, record: RoundRecord) -> None:
        if not self.mended:
            raise UnicodeEncodeError("latin-1", "\u2013", 0, 1, "no such character")
        self.taken.append(record)

    def close(self) -> None:
        raise OSError("gone")


def test_a_sink_that_fails_is_counted_told_once_and_used_again_when_it_works(caplog):
    counters, broken = Counters(), Broken()
    sink = Fenced(broken, counters)
    with caplog.at_level(logging.ERROR):
        sink.write(RECORD)
        sink.write(RECORD)
        broken.mended = True
        sink.write(RECORD)
        sink.close()
    assert broken.taken == [RECORD]
    assert counters.snapshot() == {"sink_failures{sink=Broken}": 3.0}
    assert [r.getMessage()[:13] for r in caplog.records] == ["Broken failed"]
