from __future__ import annotations

import pytest

from swarm.transport.peer_connections import DialReasons

HOME = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
FAILED = "Connect failed. msg=failed to dial: failed to dial 12D3KooWQYhT: all dials failed\n"
REFUSED = Exception(
    f"{FAILED}  * [/ip4/127.0.0.1/tcp/4001] dial tcp4 127.0.0.1:4001: connect: connection refused"
)
PAUSED = Exception(f"{FAILED}  * [/ip4/127.0.0.1/tcp/4001] dial backoff")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (REFUSED, "connection refused"),
        (
            Exception("Connect failed. msg=failed to dial: failed to dial 12D3: no good addresses"),
            "the name is unknown, or no address of this kind can be dialled",
        ),
        (Exception("Connect failed. msg=invalid peer id"), "invalid peer id"),
        (
            Exception(f"{FAILED}  * [/x] error opening relay circuit: NO_RESERVATION (204)"),
            "the relay does not relay for it any more; join through another peer",
        ),
        (
            Exception(f"{FAILED}  * [/x] error opening relay circuit: CONNECTION_FAILED (203)"),
            "the relay does not reach it",
        ),
        (TimeoutError(), "TimeoutError"),
        (PAUSED, "not reached lately"),
    ],
)
def test_a_failed_dial_has_a_reason_in_one_line(error: Exception, reason: str) -> None:
    assert DialReasons().of(HOME, error) == reason


def test_while_the_daemon_pauses_the_reason_is_that_of_its_last_attempt() -> None:
    reasons = DialReasons()
    reasons.of(HOME, REFUSED)
    assert reasons.of(HOME, PAUSED) == "connection refused"
    assert reasons.of(HOME + "2", PAUSED) == "not reached lately"
    reasons.forget(HOME)
    assert reasons.of(HOME, PAUSED) == "not reached lately"
