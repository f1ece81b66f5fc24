import pytest

from node.engines.process import child
from node.engines.process.child import Watchdog


@pytest.fixture
def started():
    made = Watchdog(3.0)
    made.send()
    made.receive({"ready": True})
    made.receive({"idle": 1})
    return made


def watched(silence: Watchdog, ticks: int) -> float:
    for _ in range(ticks):
        silence.tick(1.0)
    return silence.seconds


def test_watchdog_counts_silence_after_an_unanswered_message(started):
    assert watched(started, 9) == 0
    started.send()
    assert watched(started, 2) == 2
    started.receive({"alive": True})
    assert watched(started, 3) == 2, "a tick with a message is not silent"
    assert not started.too_long and watched(started, 1) == 3
    assert started.too_long


def test_watchdog_resets_when_all_messages_are_handled(started):
    started.send()
    started.send()
    started.receive({"idle": 2})
    assert watched(started, 3) > 0
    started.receive({"idle": 3})
    assert watched(started, 9) == 0


def test_start_timeout_is_at_least_the_message_timeout():
    slow = Watchdog(3.0)
    slow.send()
    assert watched(slow, int(child.START_SECONDS) - 1) > 3.0 and not slow.too_long
    assert watched(slow, 1) and slow.too_long
    patient = Watchdog(9999.0)
    patient.send()
    assert watched(patient, 9998) and not patient.too_long
