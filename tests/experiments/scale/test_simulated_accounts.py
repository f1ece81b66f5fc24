"""Accounts and journals in memory say what those of a real node say."""

from __future__ import annotations

from experiments.scale.accounts import AccountsInMemory
from experiments.scale.clock import SteppedClock
from experiments.scale.journal import JournalInMemory
from swarm.journal import MEMORY, Journal
from swarm.reputation import Accounts

ALICE, LARRY, NOBODY = b"a" * 32, b"l" * 32, b"n" * 32


def test_whatever_happens_both_kinds_of_accounts_tell_the_same() -> None:
    clock = SteppedClock(1_700_000_000.0)
    journal = Journal(MEMORY, clock)
    kept, held = Accounts(journal, clock), AccountsInMemory(journal, clock)
    for accounts in (kept, held):
        accounts.admit(ALICE, 2)
        accounts.charge(ALICE, 0.5)
        accounts.prove([(ALICE, 1.0)] * 5)
        accounts.prove([(LARRY, 1.0)])
        accounts.refuse(LARRY, "bad_signature")
        accounts.refuse(ALICE, "replay", 3)
    clock.move_to(clock.time() + 60)
    for author in (ALICE, LARRY, NOBODY):
        assert held.banned(author) == kept.banned(author) == (author == LARRY)
        assert held.standing(author) == kept.standing(author)
        one, other = held.get(author), kept.get(author)
        assert (one.admitted, one.seconds, one.refused) == (
            other.admitted,
            other.seconds,
            other.refused,
        )
    assert held.proven() == kept.proven() == {ALICE}
    assert held.standings() == kept.standings()
    assert held.tried() == kept.tried()
    assert [account.author for account in held.snapshot()] == [ALICE, LARRY]


def test_a_journal_in_memory_hands_out_the_numbers_of_any_journal() -> None:
    clock = SteppedClock(1_700_000_000.0)
    for journal in (Journal(MEMORY, clock), JournalInMemory(clock), JournalInMemory(clock)):
        assert [journal.next_sequence() for _ in range(2)] == [1_700_000_000_000, 1_700_000_000_001]
        assert journal.next_indexes(7, 2, 3) == range(2)
        assert journal.next_indexes(7, 2, 3) == range(2, 3)
        assert journal.restored_at is None
        journal.close()
