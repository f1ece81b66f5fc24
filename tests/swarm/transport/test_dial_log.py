"""What the log says of dials that fail again and again."""

from __future__ import annotations

import logging

import pytest

from swarm.transport.peer_connections import DialLog
from swarm.transport.transport import ClockSkew, PeerUnreachable

GONE = PeerUnreachable("no peer answers")


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_an_address_that_fails_is_told_once_and_once_more_when_it_answers(caplog):
    log = DialLog()
    for _ in range(3):
        log.failed("here", GONE, reached=False)
    log.answered("here", "anna")
    log.answered("here", "anna")
    assert caplog.messages == [
        "no peer answers; dialling goes on",
        "peer anna answers again at here",
    ]


def test_a_wrong_clock_is_a_warning_where_others_agree_with_this_one(caplog):
    log = DialLog()
    log.failed("here", ClockSkew("4 s apart"), reached=False)
    log.failed("there", ClockSkew("4 s apart"), reached=True)
    assert [each.levelno for each in caplog.records] == [logging.INFO, logging.WARNING]


def test_flo_makes_up_addresses_and_few_are_remembered(caplog, monkeypatch):
    monkeypatch.setattr("swarm.transport.peer_connections.REMEMBERED", 4)
    log = DialLog()
    for number in (*range(5), 0):
        log.failed(str(number), GONE, reached=False)
    assert len(caplog.messages) == 6
