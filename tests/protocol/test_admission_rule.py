"""Who is let in: everybody, the listed, or those who worked."""

from __future__ import annotations

import pytest

from protocol.errors import NotAdmitted
from protocol.manifest import (
    AllowList,
    Open,
    ProofOfWork,
    check_admitted,
    check_author,
    find_nonce,
    work,
)
from tests.protocol.samples import ALICE, BOB, MALLORY, OTHER_SWARM, SWARM


def test_an_open_swarm_admits_mallory() -> None:
    check_author(Open(), MALLORY.author)
    check_admitted(Open(), SWARM, MALLORY.author, 0)


def test_an_allow_list_admits_its_authors_alone() -> None:
    rule = AllowList(tuple(sorted((ALICE.author, BOB.author))))
    check_author(rule, BOB.author)
    with pytest.raises(NotAdmitted):
        check_author(rule, MALLORY.author)
    with pytest.raises(NotAdmitted):
        check_admitted(rule, SWARM, MALLORY.author, 0)


def test_work_is_done_for_one_key_and_one_swarm() -> None:
    rule = ProofOfWork(10)
    nonce = find_nonce(rule, SWARM, ALICE.author)
    check_admitted(rule, SWARM, ALICE.author, nonce)
    assert work(SWARM, ALICE.author, nonce) >= 10
    with pytest.raises(NotAdmitted):
        check_admitted(rule, SWARM, BOB.author, nonce)
    with pytest.raises(NotAdmitted):
        check_admitted(rule, OTHER_SWARM, ALICE.author, nonce)


def test_a_frame_needs_no_nonce() -> None:
    check_author(ProofOfWork(40), MALLORY.author)


def test_no_work_is_due_where_the_rule_asks_for_none() -> None:
    assert find_nonce(Open(), SWARM, ALICE.author) == 0
