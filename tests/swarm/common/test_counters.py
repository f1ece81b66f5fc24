"""Repeated log messages are written once at first, and then as a count."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.virtual_clock import VirtualClock
from swarm.common.counters import LINES, PERIOD_SECONDS, Repeats
from swarm.common.util import counted, in_words
from tests.swarm.experience_parts import wait


class Capture(logging.Handler):
    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self.addFilter(repeats)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Log:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        repeats = Repeats(self.clock)
        self.handlers = Capture(repeats), Capture(repeats)
        self.logger = logging.Logger("test", logging.DEBUG)
        for handler in self.handlers:
            self.logger.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        one, other = (handler.lines for handler in self.handlers)
        assert one == other, "all handlers get the same lines"
        return one


@pytest.fixture
def log() -> Log:
    return Log()


def test_logger_writes_a_repeated_message_once_and_its_count_after_10_min(log) -> None:
    for number in range(1869):
        log.logger.info("pool: %d groups evicted (%s)", number, "full")
        wait(log.clock, 660 / 1869)
    assert log.lines == [
        "pool: 0 groups evicted (full)",
        "pool: 1700 groups evicted (full) (1699 similar messages in 10 min)",
    ]


def test_logger_writes_distinct_messages_and_all_debug_messages(log):
    for _ in range(3):
        for reason in ("aged", "full"):
            log.logger.info("pool: %d groups evicted (%s)", 1, reason)
        log.logger.warning("pool: %d groups evicted (%s)", 1, "full")
        log.logger.info("outbox: %d dropped (%s)", 1, "full")
    assert len(log.lines) == 4
    for _ in range(3):
        log.logger.debug("not sent")
    assert log.lines[4:] == ["not sent"] * 3
    notes = [f"note {number}: 100% true" for number in range(LINES + 5)]
    for note in notes:
        for _ in range(3):
            log.logger.info("%s", note)
    assert log.lines[7:] == notes, "distinct messages of one template are written"


def test_invented_peer_names_do_not_fill_the_log(log) -> None:
    for number in range(1000):
        log.logger.info("peer %s floods this node", f"12D3Koo{number}")
    assert len(log.lines) == LINES
    wait(log.clock, PERIOD_SECONDS)
    log.logger.info("peer %s floods this node", "another")
    told = f"({1000 - LINES} similar messages in 10 min)"
    assert log.lines[-1] == f"peer another floods this node {told}"


def test_error_type_separates_messages(log) -> None:
    for error in (ValueError("1"), ValueError("2"), KeyError("3")):
        try:
            raise error
        except Exception:
            log.logger.exception("the verifier failed on a group of %s", "sums")
    assert len(log.lines) == 2


def test_repeat_filter_does_not_use_the_wall_clock() -> None:
    class Jumping(VirtualClock):
        def time(self) -> float:
            raise AssertionError("wall time is not asked for")

    repeats, record = Repeats(Jumping()), logging.LogRecord("a", 20, "", 1, "again", (), None)
    assert repeats.filter(record) and repeats.filter(record)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 400)), max_size=60))
def test_every_message_is_logged_or_counted(said: list[tuple[str, float]]) -> None:
    log = Log()
    for name, seconds in said:
        wait(log.clock, seconds)
        log.logger.info("%s came", name)
    wait(log.clock, PERIOD_SECONDS)
    log.logger.info("%s came", "last")
    counted = sum(int(line.split("(")[1].split()[0]) for line in log.lines if "(" in line)
    assert len(log.lines) + counted == len(said) + 1


def test_counted_uses_the_singular_for_one_and_in_words_names_signals():
    assert [counted(n, "round") for n in range(3)] == ["0 rounds", "1 round", "2 rounds"]
    assert in_words(1) == "exit status 1"
    assert in_words(-9) == "signal SIGKILL"
    assert in_words(-40) == "signal 40"
