"""What a hash table lets in is checked once, and remembered for as long as it is asked for."""

from __future__ import annotations

from hivemind.dht.storage import DictionaryDHTValue

from swarm.common.counters import Counters
from swarm.transport.records import (
    FRESH_SECONDS,
    REMEMBERED_CHECKS,
    DictionaryRecord,
    RecordGate,
    StrictSerializer,
)
from tests.swarm.experience_parts import START


def test_a_fresh_record_is_checked_once_however_many_were_checked_in_weeks_before():
    serializer = StrictSerializer(DictionaryDHTValue)
    checked, now = [], [0.0]
    gate = RecordGate(serializer, Counters(), lambda: now[0])

    def check(*record: object) -> bool:
        checked.append(record)
        return True

    gate.check = check
    subkey = serializer.dumps(b"anna")

    def asked(number: int) -> None:
        assert gate.validate(
            DictionaryRecord(b"shard", subkey, serializer.dumps(b"%d" % number), START)
        )

    for number in range(3 * REMEMBERED_CHECKS):
        asked(number)
    now[0] += FRESH_SECONDS
    before = len(checked)
    for _ in range(3):
        for number in range(-50, 0):
            asked(number)
    assert len(checked) - before == 50
