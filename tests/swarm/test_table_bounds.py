"""Each table that grows with peer data has a bound that no manifest changes."""

import pytest

from protocol.announcement import Offer
from swarm import admission, journal, reputation
from swarm.admission import KEPT
from swarm.journal import Journal
from swarm.pool import Pool
from swarm.publisher import Outbox
from swarm.reputation import Accounts, RefusalCounts
from swarm.verification import PENALTIES, STALE_EPOCH
from tests.swarm.admission_parts import NOW, Gate, Peer
from tests.swarm.experience_parts import group
from tests.swarm.network_parts import ORIGIN

PEERS, SEEN, REASONS = 100, 64, ("replay", "timeout", "equivocation", "stale_epoch")
OTHERS = {"seen": SEEN, "accounts": 8, "refusals": 8 * len(PENALTIES), "pool": 16, "used": 20}
LOCAL = {"waiting": 8, "frames": 10, "draws": 11, "numbers": 4, "begun": 0, "written": 0}
BOUNDS = OTHERS | LOCAL | {"sqlite_sequence": 1}
"""Maximum rows of every table of a journal, under the limits below."""


@pytest.fixture
def gate(monkeypatch) -> Gate:
    """Return a gate without a maximum group age, with smaller limits than usual."""
    monkeypatch.setattr(admission, "MAX_SEEN", SEEN)
    for name in ("MAX_ACCOUNTS", "MAX_TALLIED"):
        monkeypatch.setattr(reputation, name, 8)
    for name in ("KEPT_EPOCHS", "KEPT_DRAWS"):
        monkeypatch.setattr(journal, name, 10)
    return Gate(max_age_epochs=1 << 20)


def rows(of: Journal) -> dict[str, int]:
    names = [name for (name,) in of.read("SELECT name FROM sqlite_master WHERE type='table'")]
    return {name: of.read(f"SELECT count(*) FROM {name}")[0][0] for name in names}


def test_tables_stay_bounded_despite_a_huge_maximum_group_age(gate: Gate) -> None:
    store, counts = gate.journal, RefusalCounts()
    accounts = Accounts(store, gate.clock, counts.refused)
    pool = Pool(store, 16, 1e9, gate.clock, gate.counters, kept_uses=20)
    outbox = Outbox(store, gate.counters)
    for number in range(PEERS):
        peer, epoch = Peer(gate), NOW - PEERS + number
        groups = [peer.group(index, ("1", "refuse:timeout"), epoch=epoch) for index in range(2)]
        groups += [peer.group(index, epoch=epoch) for index in range(2, 4)]
        pool.add(gate.admission.examine(peer.frame(*groups), peer.author))
        consumed = [each.key for each in pool.consume(pool.fresh()[:1], number)]
        pool.record_update(number, [(epoch, number)], consumed)
        for reason in REASONS:
            accounts.refuse(peer.author, reason)
        store.next_indexes(epoch, 1, 9)
        outbox.put([group(number)], ORIGIN)
        outbox.keep(Offer(bytes([number] * 32), 200, 1, b"\0" * 8, 1), b"frame", number, [])
        outbox.prune(oldest_epoch=0, oldest_frame=0.0, max_bytes=2000)
    sizes = rows(store)
    assert sizes.keys() == BOUNDS.keys()
    assert {name: count for name, count in sizes.items() if count > BOUNDS[name]} == {}
    assert len(counts.take()) <= reputation.MAX_TALLIED + len(REASONS)
    assert len(gate.shown.take()) == KEPT
    assert len(pool.arrived()) <= 16


def test_evicted_sample_is_not_readmitted_and_new_samples_are_admitted(gate) -> None:
    peer = Peer(gate)
    frames = [
        peer.frame(*(peer.group(index, epoch=epoch) for index in range(4)))
        for epoch in range(NOW - 2 * SEEN, NOW)
    ]
    assert all(gate.admit(frame, peer.author) == [0, 1, 2, 3] for frame in frames)
    assert gate.admit(frames[0], peer.author) == []
    assert gate.refused() == {STALE_EPOCH: 4}
    assert gate.admit(peer.frame(peer.group(5, epoch=NOW - 1)), peer.author) == [5]
