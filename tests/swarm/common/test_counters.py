"""What comes again and again is told when it begins, and then counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.common.clock import VirtualClock
from swarm.common.counters import LINES, PERIOD_SECONDS, Repeats
from swarm.common.util import counted, in_words
from tests.swarm.experience_parts import wait


class Told(logging.Handler):
    """Keeps what is let through."""

    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self.addFilter(repeats)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Log:
    """A log of its own with a filter and two handlers."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        repeats = Repeats(self.clock)
        self.handlers = Told(repeats), Told(repeats)
        self.logger = logging.Logger("test", logging.DEBUG)
        for handler in self.handlers:
            self.logger.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        one, other = (handler.lines for handler in self.handlers)
        assert one == other, "every handler is told the same"
        return one


@pytest.fixture
def log() -> Iterator[Log]:
    return Log()


def test_a_message_that_repeats_is_told_once_and_its_number_ten_minutes_later(log: Log) -> None:
    for number in range(1869):
        log.logger.info("pool: %d groups evicted (%s)", number, "full")
        wait(log.clock, 660 / 1869)
    assert log.lines == [
        "pool: 0 groups evicted (full)",
        "pool: 1700 groups evicted (full) (1699 more like it in 10 min)",
    ]


def test_messages_that_name_other_things_are_told_each(log: Log) -> None:
    for _ in range(3):
        for reason in ("aged", "full"):
            log.logger.info("pool: %d groups evicted (%s)", 1, reason)
        log.logger.warning("pool: %d groups evicted (%s)", 1, "full")
        log.logger.info("outbox: %d dropped (%s)", 1, "full")
    assert len(log.lines) == 4


def test_names_that_anybody_can_make_up_do_not_fill_the_log(log: Log) -> None:
    for number in range(1000):
        log.logger.info("peer %s floods this node", f"12D3Koo{number}")
    assert len(log.lines) == LINES
    wait(log.clock, PERIOD_SECONDS)
    log.logger.info("peer %s floods this node", "another")
    assert log.lines[-1] == f"peer another floods this node ({1000 - LINES} more like it in 10 min)"


def test_what_was_said_elsewhere_is_told_for_what_it_says(log: Log) -> None:
    for number in range(LINES + 5):
        for _ in range(3):
            log.logger.info("%s", f"note {number}: 100% true")
    assert log.lines == [f"note {number}: 100% true" for number in range(LINES + 5)]


def test_another_error_is_another_message(log: Log) -> None:
    for error in (ValueError("1"), ValueError("2"), KeyError("3")):
        try:
            raise error
        except Exception:
            log.logger.exception("the judge failed on a group of %s", "sums")
    assert len(log.lines) == 2


def test_debugging_is_told_as_it_is(log: Log) -> None:
    for _ in range(3):
        log.logger.debug("not sent")
    assert log.lines == ["not sent"] * 3


def test_a_wall_clock_that_jumps_neither_silences_a_log_nor_floods_it() -> None:
    class Jumping(VirtualClock):
        def time(self) -> float:
            raise AssertionError("wall time is not asked for")

    repeats, record = Repeats(Jumping()), logging.LogRecord("a", 20, "", 1, "again", (), None)
    assert repeats.filter(record) and repeats.filter(record)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 400)), max_size=60))
def test_every_message_is_either_told_or_counted(said: list[tuple[str, float]]) -> None:
    log = Log()
    for name, seconds in said:
        wait(log.clock, seconds)
        log.logger.info("%s came", name)
    wait(log.clock, PERIOD_SECONDS)
    log.logger.info("%s came", "last")
    counted = sum(int(line.split("(")[1].split()[0]) for line in log.lines if "(" in line)
    assert len(log.lines) + counted == len(said) + 1


@pytest.mark.parametrize(("count", "told"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_one_of_a_thing_is_told_in_the_singular(count: int, told: str) -> None:
    assert counted(count, "round") == told


def test_an_exit_status_names_its_signal_if_it_has_a_name() -> None:
    assert in_words(1) == "exit status 1"
    assert in_words(-9) == "signal SIGKILL"
    assert in_words(-40) == "signal 40"
