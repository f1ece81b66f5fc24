"""Accounts: authors' actions are remembered, penalties decay, and bans end."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import errors
from protocol.identity import peer_id_of
from swarm import reputation
from swarm import verification as verification_module
from swarm.collector import AUTHORS_FAULT
from swarm.journal import Journal
from swarm.reputation import (
    BAR_AT,
    FULL,
    LONGEST_BAN_S,
    MAX_PENALTIES,
    MEMORY,
    PENALTY_HALF_LIFE_S,
    PROVEN,
    RELEASE_AT,
    REPUTATION_HALF_LIFE_S,
    Account,
    Accounts,
    Reputation,
    is_banned,
    penalized,
    penalties_now,
    reputation_now,
)
from swarm.verification import PENALTIES
from tests.swarm.experience_parts import ANNA, BEN, START, wait


@pytest.fixture
def accounts(clock) -> Accounts:
    return Accounts(Journal(":memory:", clock), clock)


def test_unknown_author_has_an_empty_account_without_a_ban(accounts):
    assert accounts.get(ANNA) == Account(ANNA)
    assert not accounts.banned(ANNA)
    assert accounts.snapshot() == []


def test_account_sums_bytes_groups_refusals_and_verifier_time(accounts, clock):
    accounts.count_bytes(ANNA, received=100)
    accounts.count_bytes(ANNA, received=20, sent=7)
    assert accounts.get(ANNA).admitted_at == 0.0
    accounts.admit(ANNA, 3)
    wait(clock, 5.0)
    accounts.admit(ANNA, 0)
    accounts.refuse(ANNA, "stale_epoch", 2)
    accounts.refuse(ANNA, "stale_epoch")
    accounts.charge(ANNA, 1.5)
    accounts.charge(ANNA, 0.25)
    wait(clock, 1.0)
    accounts.admit(BEN, 1)
    ben, anna = accounts.snapshot()
    assert (ben.author, ben.admitted, ben.refused) == (BEN, 1, {})
    assert (anna.bytes_in, anna.bytes_out, anna.admitted, anna.seconds) == (120, 7, 3, 1.75)
    assert (anna.refused, anna.penalties, anna) == ({"stale_epoch": 3}, 0.0, accounts.get(ANNA))
    assert (anna.admitted_at, anna.touched) == (START, START + 5.0)


def test_forger_is_banned_immediately_until_its_penalties_decay(accounts, clock):
    accounts.refuse(ANNA, "bad_signature")
    assert accounts.banned(ANNA)
    wait(clock, 2.3 * PENALTY_HALF_LIFE_S)
    assert accounts.banned(ANNA)
    wait(clock, 0.1 * PENALTY_HALF_LIFE_S)
    assert not accounts.banned(ANNA)
    accounts.refuse(ANNA, "reward_mismatch")
    assert not accounts.banned(ANNA)
    account = Account(ANNA, penalties=4 * RELEASE_AT, penalized_at=START, barred=True)
    assert is_banned(account, START + 2 * PENALTY_HALF_LIFE_S - 1.0)
    assert not is_banned(account, START + 2 * PENALTY_HALF_LIFE_S)


def test_ban_logs_how_to_undo_updates_with_the_peers_groups(accounts, caplog):
    accounts.prove([(ANNA, 0.5)])
    for author in (ANNA, BEN, ANNA):
        accounts.refuse(author, "bad_signature")
    anna, ben = peer_id_of(ANNA), peer_id_of(BEN)
    assert caplog.messages == [
        f"peer {anna} is banned, last penalty for bad_signature",
        f"updates used groups of the banned peer {anna}. To undo them, stop the node and run: "
        f"swarm-node block {anna} --undo",
        f"peer {ben} is banned, last penalty for bad_signature",
    ]


def test_neither_penalties_nor_useful_groups_end_a_ban(accounts, clock):
    accounts.refuse(ANNA, "bad_signature")
    wait(clock, PENALTY_HALF_LIFE_S)
    accounts.refuse(ANNA, "reward_mismatch")
    assert RELEASE_AT < penalties_now(accounts.get(ANNA), clock.time()) < BAR_AT
    accounts.prove([(ANNA, 1.0), (BEN, 1.0)])
    assert accounts.banned(ANNA)
    assert (accounts.reputation(ANNA), set(accounts.reputations())) == (0.0, {BEN})


def test_five_quick_false_claims_ban_an_author_but_rare_ones_do_not(accounts, clock):
    accounts.refuse(ANNA, "reward_mismatch", 4)
    assert not accounts.banned(ANNA)
    accounts.refuse(ANNA, "reward_mismatch")
    assert accounts.banned(ANNA)
    for _ in range(50):
        accounts.refuse(BEN, "reward_mismatch")
        wait(clock, PENALTY_HALF_LIFE_S)
    assert not accounts.banned(BEN)


def test_refusals_without_fault_never_cause_a_ban(accounts):
    for reason in [reason for reason, weight in PENALTIES.items() if weight == 0]:
        accounts.refuse(ANNA, reason, 10_000)
    assert not accounts.banned(ANNA)


def test_penalty_table_covers_every_refusal_reason():
    codes = {cls.code for _, cls in inspect.getmembers(errors, inspect.isclass)}
    named = {v for n, v in vars(verification_module).items() if n.isupper() and isinstance(v, str)}
    assert codes | named | {fault.code for fault in AUTHORS_FAULT} <= set(PENALTIES)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.sampled_from([1.0, 5.0])), max_size=30))
def test_every_ban_ends_within_six_half_lives(penalties):
    account, now = Account(ANNA), START
    for pause, weight in penalties:
        now += pause
        account = penalized(account, weight, now)
        assert penalties_now(account, now) <= MAX_PENALTIES
        if penalties_now(account, now) >= BAR_AT:
            assert is_banned(account, now)
    assert not is_banned(account, now + 6 * PENALTY_HALF_LIFE_S)
    assert penalties_now(penalized(Account(ANNA), 2.0, START), START - 1e6) == 2.0
    assert penalized(Account(ANNA), 1000.0, START).penalties == MAX_PENALTIES


def test_evicted_account_is_removed_completely_and_others_stay(accounts, clock, monkeypatch):
    monkeypatch.setattr(reputation, "MAX_ACCOUNTS", 2)
    for author in (ANNA, BEN, b"\xcc" * 32):
        accounts.refuse(author, "stale_epoch")
        wait(clock, 1.0)
    refused = {account.author: account.refused for account in accounts.snapshot()}
    assert refused == {author: {"stale_epoch": 1} for author in (BEN, b"\xcc" * 32)}
    accounts.admit(ANNA, 1)
    assert accounts.get(ANNA).refused == {}


@pytest.mark.parametrize("hours", [0.0, 24.0])
def test_banned_keys_do_not_stop_an_author_from_being_proven(accounts, clock, monkeypatch, hours):
    monkeypatch.setattr(reputation, "MAX_ACCOUNTS", 3)
    for number in range(3):
        accounts.refuse(bytes([number]) * 32, "bad_signature")
    wait(clock, 3600.0 * hours)
    for number in range(4):
        accounts.admit(ANNA, 1)
        accounts.prove([(ANNA, 1.0)])
        accounts.count_bytes(bytes([100 + number]) * 32, sent=1000)
    assert accounts.proven() == {ANNA}


def test_author_is_proven_after_4_useful_groups_until_reputation_decays(accounts, clock):
    accounts.admit(ANNA, 1000)
    assert accounts.reputation(ANNA) == 0.0
    accounts.prove([(ANNA, 1.0)] * 3)
    assert 0.0 < accounts.reputation(ANNA) < PROVEN
    assert accounts.proven() == frozenset()
    rest = accounts.get(ANNA).reputation.earned * (1.0 - 1.0 / MEMORY)
    accounts.prove([(ANNA, PROVEN * FULL - rest), (BEN, 0.0)])
    assert (accounts.reputation(ANNA), accounts.proven()) == (PROVEN, {ANNA})
    accounts.prove([(ANNA, 1.0)] * 12)
    wait(clock, 12 * 3600.0)
    assert accounts.proven() == {ANNA}, "the reputation lasts through a night"
    wait(clock, 30 * 86400.0)
    assert accounts.proven() == frozenset(), "the reputation does not last a month"


def test_false_claims_reduce_reputation_and_a_ban_erases_it(accounts, clock):
    accounts.prove([(ANNA, 1.0)] * 12)
    accounts.refuse(ANNA, "reward_mismatch", 3)
    assert accounts.proven() == frozenset()
    wait(clock, 2 * PENALTY_HALF_LIFE_S)
    assert accounts.proven() == {ANNA}
    accounts.refuse(ANNA, "bad_signature")
    wait(clock, 6 * PENALTY_HALF_LIFE_S)
    assert not accounts.banned(ANNA)
    assert accounts.reputation(ANNA) == 0.0


def test_ignored_authors_are_banned_or_blocked_authors(accounts, clock):
    accounts.refuse(ANNA, "bad_signature")
    accounts.refuse(BEN, "reward_mismatch")
    assert accounts.ignored() == {ANNA}
    accounts.blocked = frozenset([BEN])
    assert accounts.ignored() == {ANNA, BEN} == {a for a in (ANNA, BEN) if accounts.banned(a)}
    wait(clock, 6 * PENALTY_HALF_LIFE_S)
    assert accounts.ignored() == {BEN}


def test_author_earns_no_reputation_while_banned(accounts, clock):
    accounts.refuse(ANNA, "bad_signature")
    accounts.prove([(ANNA, 1.0)] * 12)
    wait(clock, 6 * PENALTY_HALF_LIFE_S)
    assert not accounts.banned(ANNA) and accounts.reputation(ANNA) == 0.0
    accounts.prove([(ANNA, 1.0)])
    assert accounts.reputation(ANNA) > 0.0


def test_unknown_authors_evict_no_banned_or_proven_account(accounts, clock, monkeypatch):
    monkeypatch.setattr(reputation, "MAX_ACCOUNTS", 3)
    accounts.refuse(ANNA, "bad_signature")
    for number in range(10):
        wait(clock, 1.0)
        accounts.refuse(bytes([number]) * 32, "stale_epoch")
    assert {a.author for a in accounts.snapshot()} == {ANNA, b"\x08" * 32, b"\x09" * 32}
    assert accounts.banned(ANNA)
    accounts.prove([(BEN, 1.0)] * 4)
    for number in range(20):
        wait(clock, 1.0)
        accounts.refuse(bytes([number]) * 32, "bad_signature")
    assert (accounts.proven(), len(accounts.snapshot())) == ({BEN}, 3)


def test_tried_lists_authors_with_their_decayed_earnings(accounts, clock):
    accounts.admit(b"\xcc" * 32, 1)
    accounts.prove([(ANNA, 1.0), (BEN, 0.0)])
    assert accounts.tried() == {ANNA: 1.0, BEN: 0.0}
    wait(clock, REPUTATION_HALF_LIFE_S)
    assert accounts.tried() == {ANNA: 0.5, BEN: 0.0}


@pytest.mark.parametrize("used", [True, False])
def test_penalized_author_counts_as_tried_but_one_slow_text_does_not(accounts, clock, used):
    if used:
        accounts.prove([(ANNA, 1.0)])
    accounts.refuse(ANNA, "bad_signature")
    accounts.refuse(BEN, "cpu_limit")
    accounts.refuse(b"\xcc" * 32, "reward_mismatch")
    accounts.refuse(b"\xdd" * 32, "stale_epoch")
    for _ in range(2):
        assert accounts.tried() == {ANNA: 0.0, b"\xcc" * 32: 0.0}
        wait(clock, 2 * LONGEST_BAN_S)
    assert not accounts.banned(ANNA), "the ban has ended"
    accounts.prove([(ANNA, 1.0)])
    assert accounts.tried()[ANNA] == 1.0, "reputation earned after a ban counts"


usefulness = st.floats(0, 1)
histories = st.lists(st.tuples(st.floats(0, 1e6), usefulness), max_size=40)


def reputation_of(reputation: Reputation, now: float = START, penalties: float = 0.0) -> float:
    account = Account(b"", penalties=penalties, penalized_at=now, reputation=reputation)
    return reputation_now(account, now)


def after(*values: float) -> Reputation:
    reputation = Reputation()
    for value in values:
        reputation = reputation.after(value, START)
    return reputation


@given(histories, usefulness, usefulness, st.floats(0, 2 * BAR_AT))
def test_reputation_stays_in_0_to_1_and_grows_with_usefulness(history, less, more, penalties):
    reputation, now = Reputation(), START
    for pause, value in history:
        now += pause
        reputation = reputation.after(value, now)
    assert 0.0 <= reputation_of(reputation, now, penalties) <= reputation_of(reputation, now) <= 1.0
    less, more = sorted((less, more))
    assert reputation_of(reputation.after(less, now), now) <= reputation_of(
        reputation.after(more, now), now
    )
    assert reputation_of(reputation, now + REPUTATION_HALF_LIFE_S) <= PROVEN


def test_proof_takes_four_useful_groups_and_ends_after_eight_useless_ones():
    assert reputation_of(after(*[1.0] * 3)) < PROVEN <= reputation_of(after(*[1.0] * 4))
    assert reputation_of(after(*[1.0] * 100, *[0.0] * 8)) < PROVEN
    assert reputation_of(after(*[0.24] * 500)) < PROVEN <= reputation_of(after(*[0.3] * 500))


def test_invalid_or_excess_usefulness_and_a_clock_set_back_earn_nothing():
    assert [after(float(value)).earned for value in ("nan", "inf", "-3")] == [0.0] * 3
    reputation = after(*[2.0] * 100)
    assert (reputation.earned, reputation_of(reputation, START - 1e9)) == (FULL, 1.0)


def test_half_the_ban_penalty_and_one_half_life_each_halve_reputation():
    reputation = after(*[1.0] * 4)
    half = reputation_of(reputation, penalties=BAR_AT / 2)
    assert half == pytest.approx(reputation_of(reputation) / 2)
    assert reputation_of(reputation, penalties=BAR_AT) == 0.0
    late = reputation.after(1.0, START + REPUTATION_HALF_LIFE_S)
    assert late.earned == pytest.approx(reputation.earned / 2 * (1 - 1 / MEMORY) + 1.0)
    assert late.at == START + REPUTATION_HALF_LIFE_S
