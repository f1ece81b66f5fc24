"""Accounts: what authors did is remembered, strikes fade, and bans end."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import errors
from swarm import reputation
from swarm import verification as verification_module
from swarm.collector import AUTHORS_FAULT
from swarm.journal import Journal
from swarm.reputation import (
    BAR_AT,
    FULL,
    MEMORY,
    MOST_STRIKES,
    PROOF_HALF_LIFE_S,
    PROVEN,
    RELEASE_AT,
    STRIKE_HALF_LIFE_S,
    Account,
    Accounts,
    Proof,
    is_banned,
    strikes_now,
    struck,
)
from swarm.verification import STRIKES
from tests.swarm.experience_parts import ANNA, BEN, START, wait


@pytest.fixture
def accounts(clock) -> Accounts:
    return Accounts(Journal(":memory:", clock), clock)


def test_a_stranger_has_an_empty_account_and_is_not_banned(accounts):
    assert accounts.get(ANNA) == Account(ANNA)
    assert not accounts.banned(ANNA)
    assert accounts.snapshot() == []


def test_bytes_groups_refusals_and_time_of_verification_add_up(accounts, clock):
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
    assert (anna.refused, anna.strikes, anna) == ({"stale_epoch": 3}, 0.0, accounts.get(ANNA))
    assert (anna.admitted_at, anna.touched) == (START, START + 5.0)


def test_a_forger_is_banned_at_once_and_released_when_its_strikes_have_faded(accounts, clock):
    accounts.refuse(ANNA, "bad_signature")
    assert accounts.banned(ANNA)
    wait(clock, 2.3 * STRIKE_HALF_LIFE_S)
    assert accounts.banned(ANNA)
    wait(clock, 0.1 * STRIKE_HALF_LIFE_S)
    assert not accounts.banned(ANNA)
    accounts.refuse(ANNA, "reward_mismatch")
    assert not accounts.banned(ANNA)
    account = Account(ANNA, strikes=4 * RELEASE_AT, struck_at=START, barred=True)
    assert is_banned(account, START + 2 * STRIKE_HALF_LIFE_S - 1.0)
    assert not is_banned(account, START + 2 * STRIKE_HALF_LIFE_S)


def test_no_strike_and_nothing_earned_during_a_ban_ends_it(accounts, clock):
    accounts.refuse(ANNA, "bad_signature")
    wait(clock, STRIKE_HALF_LIFE_S)
    accounts.refuse(ANNA, "reward_mismatch")
    assert RELEASE_AT < strikes_now(accounts.get(ANNA), clock.time()) < BAR_AT
    accounts.prove([(ANNA, 1.0), (BEN, 1.0)])
    assert accounts.banned(ANNA)
    assert (accounts.standing(ANNA), set(accounts.standings())) == (0.0, {BEN})


def test_a_few_lies_or_many_far_apart_are_borne_and_five_at_once_are_not(accounts, clock):
    accounts.refuse(ANNA, "reward_mismatch", 4)
    assert not accounts.banned(ANNA)
    accounts.refuse(ANNA, "reward_mismatch")
    assert accounts.banned(ANNA)
    for _ in range(50):
        accounts.refuse(BEN, "reward_mismatch")
        wait(clock, STRIKE_HALF_LIFE_S)
    assert not accounts.banned(BEN)


def test_what_is_not_the_authors_fault_never_bans(accounts):
    for reason in [reason for reason, weight in STRIKES.items() if weight == 0]:
        accounts.refuse(ANNA, reason, 10_000)
    assert not accounts.banned(ANNA)


def test_every_reason_of_protocol_pull_admission_and_judge_has_its_line_in_the_table():
    codes = {kind.code for _, kind in inspect.getmembers(errors, inspect.isclass)}
    named = {v for n, v in vars(verification_module).items() if n.isupper() and isinstance(v, str)}
    assert codes | named | {fault.code for fault in AUTHORS_FAULT} <= set(STRIKES)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.sampled_from([1.0, 5.0])), max_size=30))
def test_a_ban_ends_within_six_half_lives_whatever_came_before(strikes):
    account, now = Account(ANNA), START
    for pause, weight in strikes:
        now += pause
        account = struck(account, weight, now)
        assert strikes_now(account, now) <= MOST_STRIKES
        if strikes_now(account, now) >= BAR_AT:
            assert is_banned(account, now)
    assert not is_banned(account, now + 6 * STRIKE_HALF_LIFE_S)
    assert strikes_now(struck(Account(ANNA), 2.0, START), START - 1e6) == 2.0
    assert struck(Account(ANNA), 1000.0, START).strikes == MOST_STRIKES


def test_what_is_forgotten_of_an_author_is_all_and_of_others_nothing(accounts, clock, monkeypatch):
    monkeypatch.setattr(reputation, "MAX_ACCOUNTS", 2)
    for author in (ANNA, BEN, b"\xcc" * 32):
        accounts.refuse(author, "stale_epoch")
        wait(clock, 1.0)
    refused = {account.author: account.refused for account in accounts.snapshot()}
    assert refused == {author: {"stale_epoch": 1} for author in (BEN, b"\xcc" * 32)}
    accounts.admit(ANNA, 1)
    assert accounts.get(ANNA).refused == {}


@pytest.mark.parametrize("hours", [0.0, 24.0])
def test_keys_that_are_or_were_banned_keep_no_newcomer_from_being_proven(
    accounts, clock, monkeypatch, hours
):
    monkeypatch.setattr(reputation, "MAX_ACCOUNTS", 3)
    for number in range(3):
        accounts.refuse(bytes([number]) * 32, "bad_signature")
    wait(clock, 3600.0 * hours)
    for number in range(4):
        accounts.admit(ANNA, 1)
        accounts.prove([(ANNA, 1.0)])
        accounts.count_bytes(bytes([100 + number]) * 32, sent=1000)
    assert accounts.proven() == {ANNA}


def test_an_author_has_standing_once_four_useful_groups_were_learned_from(accounts, clock):
    accounts.admit(ANNA, 1000)
    assert accounts.standing(ANNA) == 0.0
    accounts.prove([(ANNA, 1.0)] * 3)
    assert 0.0 < accounts.standing(ANNA) < PROVEN
    assert accounts.proven() == frozenset()
    left = accounts.get(ANNA).proof.earned * (1.0 - 1.0 / MEMORY)
    accounts.prove([(ANNA, PROVEN * FULL - left), (BEN, 0.0)])
    assert (accounts.standing(ANNA), accounts.proven()) == (PROVEN, {ANNA})
    accounts.prove([(ANNA, 1.0)] * 12)
    wait(clock, 12 * 3600.0)
    assert accounts.proven() == {ANNA}, "it outlives a night"
    wait(clock, 30 * 86400.0)
    assert accounts.proven() == frozenset(), "and not a month"


def test_standing_goes_with_lies_and_a_ban_takes_it_for_good(accounts, clock):
    accounts.prove([(ANNA, 1.0)] * 12)
    accounts.refuse(ANNA, "reward_mismatch", 3)
    assert accounts.proven() == frozenset()
    wait(clock, 2 * STRIKE_HALF_LIFE_S)
    assert accounts.proven() == {ANNA}
    accounts.refuse(ANNA, "bad_signature")
    wait(clock, 6 * STRIKE_HALF_LIFE_S)
    assert not accounts.banned(ANNA)
    assert accounts.standing(ANNA) == 0.0


def test_strangers_push_out_no_ban_and_no_proven_author_however_idle(accounts, clock, monkeypatch):
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


def test_whose_groups_were_used_is_known_with_what_is_left_of_what_they_earned(accounts, clock):
    accounts.admit(b"\xcc" * 32, 1)
    accounts.prove([(ANNA, 1.0), (BEN, 0.0)])
    assert accounts.tried() == {ANNA: 1.0, BEN: 0.0}
    wait(clock, PROOF_HALF_LIFE_S)
    assert accounts.tried() == {ANNA: 0.5, BEN: 0.0}


usefulness = st.floats(0, 1)
histories = st.lists(st.tuples(st.floats(0, 1e6), usefulness), max_size=40)


def standing(proof: Proof, now: float = START, strikes: float = 0.0) -> float:
    return proof.standing(strikes, BAR_AT, now)


def after(*values: float) -> Proof:
    proof = Proof()
    for value in values:
        proof = proof.after(value, START)
    return proof


@given(histories, usefulness, usefulness, st.floats(0, 2 * BAR_AT))
def test_standing_lies_between_none_and_all_and_grows_with_usefulness(history, less, more, strikes):
    proof, now = Proof(), START
    for pause, value in history:
        now += pause
        proof = proof.after(value, now)
    assert 0.0 <= standing(proof, now, strikes) <= standing(proof, now) <= 1.0
    less, more = sorted((less, more))
    assert standing(proof.after(less, now), now) <= standing(proof.after(more, now), now)
    assert standing(proof, now + PROOF_HALF_LIFE_S) <= PROVEN


def test_four_useful_groups_prove_and_eight_useless_ones_undo_it_and_less_than_a_quarter_never():
    assert standing(after(*[1.0] * 3)) < PROVEN <= standing(after(*[1.0] * 4))
    assert standing(after(*[1.0] * 100, *[0.0] * 8)) < PROVEN
    assert standing(after(*[0.24] * 500)) < PROVEN <= standing(after(*[0.3] * 500))


def test_what_is_no_share_and_what_is_beyond_the_full_proof_and_a_clock_put_back_earn_nothing():
    assert [after(float(value)).earned for value in ("nan", "inf", "-3")] == [0.0] * 3
    proof = after(*[2.0] * 100)
    assert (proof.earned, standing(proof, START - 1e9)) == (FULL, 1.0)


def test_half_of_the_strikes_that_ban_take_half_of_the_standing_and_time_half_of_what_is_earned():
    proof = after(*[1.0] * 4)
    assert standing(proof, strikes=BAR_AT / 2) == pytest.approx(standing(proof) / 2)
    assert standing(proof, strikes=BAR_AT) == 0.0
    late = proof.after(1.0, START + PROOF_HALF_LIFE_S)
    assert late.earned == pytest.approx(proof.earned / 2 * (1 - 1 / MEMORY) + 1.0)
    assert late.at == START + PROOF_HALF_LIFE_S
