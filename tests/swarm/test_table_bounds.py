"""Every table that grows with what peers send has a bound that no manifest moves."""

from dataclasses import replace

import pytest

from protocol.announcement import Offer
from protocol.manifest import sign_manifest, swarm_id
from swarm import admission, journal, reputation
from swarm.admission import KEPT
from swarm.journal import Journal
from swarm.pool import Pool
from swarm.publisher import Outbox
from swarm.reputation import Accounts, RefusalCounts
from swarm.verification import PENALTIES, STALE_EPOCH
from tests.swarm.admission_parts import CREATOR, NOW, Gate, Peer
from tests.swarm.experience_parts import group
from tests.swarm.network_parts import ORIGIN

PEERS, SEEN, REASONS = 100, 64, ("replay", "timeout", "equivocation", "stale_epoch")
OTHERS = {"seen": SEEN, "accounts": 8, "refusals": 8 * len(PENALTIES), "pool": 16, "used": 20}
OWN = {"waiting": 8, "frames": 10, "draws": 11, "numbers": 4, "begun": 0, "written": 0}
BOUNDS = OTHERS | OWN | {"sqlite_sequence": 1}
"""Most rows of every table of a journal, under the limits below."""


@pytest.fixture
def gate(monkeypatch) -> Gate:
    """A gate of a swarm whose groups are never too old, with smaller limits than usual."""
    monkeypatch.setattr(admission, "MAX_SEEN", SEEN)
    for name in ("MAX_ACCOUNTS", "MAX_TALLIED"):
        monkeypatch.setattr(reputation, name, 8)
    for name in ("KEPT_EPOCHS", "KEPT_DRAWS"):
        monkeypatch.setattr(journal, name, 10)
    gate = Gate()
    gate.manifest = replace(gate.manifest, max_age_epochs=1 << 20)
    gate.swarm_id = swarm_id(sign_manifest(gate.manifest, CREATOR))
    gate.open(gate.journal)
    return gate


def rows(of: Journal) -> dict[str, int]:
    names = [name for (name,) in of.read("SELECT name FROM sqlite_master WHERE type='table'")]
    return {name: of.read(f"SELECT count(*) FROM {name}")[0][0] for name in names}


def test_no_table_grows_beyond_its_bound_whatever_the_manifest_says(gate: Gate) -> None:
    kept, counts = gate.journal, RefusalCounts()
    accounts = Accounts(kept, gate.clock, counts.refused)
    pool = Pool(kept, 16, 1e9, gate.clock, gate.counters, kept_uses=20)
    outbox = Outbox(kept, gate.counters)
    for number in range(PEERS):
        peer, epoch = Peer(gate), NOW - PEERS + number
        told = [peer.group(index, ("1", "refuse:timeout"), epoch=epoch) for index in range(2)]
        told += [peer.group(index, epoch=epoch) for index in range(2, 4)]
        pool.add(gate.admission.examine(peer.frame(*told), peer.author))
        taken = [each.key for each in pool.consume(pool.fresh()[:1], number)]
        pool.record_update(number, [(epoch, number)], taken)
        for reason in REASONS:
            accounts.refuse(peer.author, reason)
        kept.next_indexes(epoch, 1, 9)
        outbox.put([group(number)], ORIGIN)
        outbox.keep(Offer(bytes([number] * 32), 200, 1, b"\0" * 8, 1), b"frame", number, [])
        outbox.prune(oldest_epoch=0, oldest_frame=0.0, max_bytes=2000)
    found = rows(kept)
    assert found.keys() == BOUNDS.keys()
    assert {name: count for name, count in found.items() if count > BOUNDS[name]} == {}
    assert len(counts.take()) <= reputation.MAX_TALLIED + len(REASONS)
    assert len(gate.shown.take()) == KEPT
    assert len(pool.arrived()) <= 16


def test_a_sample_that_had_to_be_forgotten_is_not_admitted_again_and_new_ones_are(gate) -> None:
    peer = Peer(gate)
    frames = [
        peer.frame(*(peer.group(index, epoch=epoch) for index in range(4)))
        for epoch in range(NOW - 2 * SEEN, NOW)
    ]
    assert all(gate.admit(frame, peer.author) == [0, 1, 2, 3] for frame in frames)
    assert gate.admit(frames[0], peer.author) == []
    assert gate.refused() == {STALE_EPOCH: 4}
    assert gate.admit(peer.frame(peer.group(5, epoch=NOW - 1)), peer.author) == [5]
