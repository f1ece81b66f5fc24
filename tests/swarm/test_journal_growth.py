"""The journal of a node that goes on and on."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from pathlib import Path

from protocol.announcement import epoch_of
from swarm.admission import AHEAD_EPOCHS, oldest_epoch
from swarm.common.counters import Counters
from swarm.journal import LARGEST_LOG, backup_path
from swarm.pool import LEAST_USES, Pool
from swarm.reputation import Accounts
from tests.swarm.admission_parts import EPOCH_SECONDS, Gate
from tests.swarm.experience_parts import pooled, wait

ROUNDS, OWN, EXTERNAL = 1_250, 64, 16
USES = ROUNDS * (OWN + EXTERNAL)
SAVED = 25
"""Rounds between two checkpoints, which forget what is out of date."""
ROUNDS_AN_EPOCH = 12
LARGEST = 4 << 20
"""Bytes of a journal with so small groups, whatever the number of rounds."""


def test_a_journal_and_its_copy_stay_small_over_a_hundred_thousand_uses(tmp_path: Path) -> None:
    gate, counters = Gate(tmp_path / "journal.sqlite"), Counters()
    clock, journal = gate.clock, gate.journal
    pool = Pool(journal, EXTERNAL, 60.0, clock, counters)
    accounts = Accounts(journal, clock)
    fresh, largest, trained = count(), 0, 0
    for step in range(1, ROUNDS + 1):
        epoch = epoch_of(clock.time(), EPOCH_SECONDS)
        own = [(epoch, index) for index in journal.next_indexes(epoch, OWN, 1 << 16)]
        now = clock.time()
        pool.add([pooled(next(fresh), epoch=epoch, received=now) for _ in range(EXTERNAL)])
        taken = pool.consume(pool.fresh(), step)
        pool.record_update(step, own, [group.key for group in taken])
        trained += len(own) + len(taken)
        accounts.prove([(group.author, 1.0) for group in taken])
        if step % ROUNDS_AN_EPOCH == 0:
            wait(clock, EPOCH_SECONDS)
        if step % SAVED == 0:
            pool.forget(oldest_epoch(gate.manifest, clock.time()))
            journal.backup()
            largest = max(largest, (tmp_path / "journal.sqlite").stat().st_size)
    assert trained == USES == 100_000
    ((uses,),) = journal.read("SELECT count(*) FROM used")
    epochs = gate.manifest.max_age_epochs + AHEAD_EPOCHS + 1
    assert uses <= LEAST_USES + (epochs * ROUNDS_AN_EPOCH * EXTERNAL)
    with closing(journal):
        copy = backup_path(tmp_path / "journal.sqlite").stat().st_size
    assert copy <= largest <= LARGEST
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 2 * LARGEST + LARGEST_LOG
