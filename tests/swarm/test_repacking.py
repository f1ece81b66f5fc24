"""Groups that an earlier program kept as frames of one group each."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from protocol.batch import encode_batch
from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.rollout import Batch
from swarm.common.clock import VirtualClock
from swarm.common.counters import Counters
from swarm.journal import Journal
from swarm.origin import Origin
from swarm.outbox import Outbox
from swarm.pool import Pool
from tests.swarm.experience_parts import START, group, pooled

ORIGIN = Origin(3, "tiny", b"\x01" * 32, 0.5, 16)
HELD = pooled(1)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """One of layout 4, with two groups in the pool, one of them unreadable, and one waiting."""
    path, clock = tmp_path / "journal.sqlite", VirtualClock(START)
    today = Journal(path, clock)
    Pool(today, 10, 60.0, clock, Counters()).add([HELD, pooled(2)])
    Outbox(today, Counters()).put([group()], ORIGIN)
    today.close()
    held = encode_batch(Batch(0, 3, 0.0, "-", HELD.encoding, 1.0, 1, (HELD.group,)))
    rewards = struct.pack("<2d", *HELD.group.rewards)
    waiting = encode_batch(Batch(0, 3, 0.0, "tiny", ORIGIN.encoding, 0.5, 16, (group(),)))
    with closing(sqlite3.connect(path)) as file, file:
        row = encode([bytes(32), HELD.prompt, rewards, held])
        file.execute("UPDATE pool SET contents=? WHERE number=1", (row,))
        file.execute("UPDATE pool SET contents=x'c1' WHERE number=2")
        file.execute("UPDATE waiting SET plain=?", (waiting,))
        file.execute("ALTER TABLE accounts DROP COLUMN admitted_at")
        file.execute("PRAGMA user_version=4")
    return Journal(path, clock)


def test_they_are_learned_from_and_shared_all_the_same(journal):
    pool = Pool(journal, 10, 60.0, VirtualClock(START), Counters())
    assert pool.consume(pool.fresh()[:1], step=1) == [HELD]
    (waiting,) = Outbox(journal, Counters()).take(1 << 20)
    assert (waiting.group, waiting.origin) == (group(), ORIGIN)
    ((size, length),) = journal.read("SELECT size, length(contents) FROM pool WHERE number=2")
    assert size == length


def test_what_cannot_be_read_keeps_the_journal_from_nothing_else(journal):
    pool = Pool(journal, 10, 60.0, VirtualClock(START), Counters())
    with pytest.raises(ProtocolError):
        pool.consume(pool.fresh()[1:], step=1)
