"""Whoever watches keys hears of what is stored under them, within bounds."""

from __future__ import annotations

from protocol.announcement import dht_key_of
from swarm.common.counters import Counters
from swarm.transport.records import MAX_TOLD, Watch


def test_only_what_is_stored_under_the_latest_keys_is_told() -> None:
    heard: list[bytes] = []
    watch = Watch(Counters())
    watch.stored(dht_key_of("first"), b"before anybody watches")
    watch.begin(["first"], heard.append)
    watch.stored(dht_key_of("first"), b"one")
    watch.stored(dht_key_of("other"), b"elsewhere")
    watch.begin(["second"], heard.append)
    watch.stored(dht_key_of("first"), b"too late")
    watch.stored(dht_key_of("second"), b"two")
    assert heard == [b"one", b"two"]


def test_flo_who_floods_a_key_is_heard_so_many_times_and_then_no_more() -> None:
    heard: list[bytes] = []
    counters = Counters()
    watch = Watch(counters)
    watch.begin(["a key"], heard.append)
    for number in range(1000):
        watch.stored(dht_key_of("a key"), b"flo %d" % number)
    assert (len(heard), counters.snapshot()["records_not_told"]) == (MAX_TOLD, 1000 - MAX_TOLD)
    watch.begin(["a key"], heard.append)
    watch.stored(dht_key_of("a key"), b"anna")
    assert heard[-1] == b"anna"
