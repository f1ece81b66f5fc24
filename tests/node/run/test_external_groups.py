"""What an update takes from outside, and what its authors have of that."""

from __future__ import annotations

import pytest

from node.learner.update_stats import UpdateStats
from node.monitor.record import Stopwatch
from node.rollout.groups import Intake
from node.run.outcome import Rules
from node.run.update_groups import open_intake
from swarm.common.counters import Counters
from swarm.groups import GroupKey
from swarm.mixture.peer_advantage import KEPT
from swarm.mixture.selection import AutoSelection
from tests.node.rollout.test_intake import sent
from tests.node.run.rounds_parts import Half, Loop
from tests.node.run.trainer_parts import Parts, configured, manifest
from tests.support import random_policy
from tests.swarm.experience_parts import ANNA, BEN, pooled


def test_shares_are_of_the_own_groups_that_the_update_has() -> None:
    loop = Loop(local=8, external=8)
    loop.prove(ANNA)
    loop.pool.add(pooled(number) for number in range(8))
    written = loop.source.generate(8, Stopwatch())
    assert len(loop.external.take(1, written, written[:1]).groups) == 1
    assert len(loop.pool.fresh()) == 7, "what eight own groups would allow is left to others"


@pytest.mark.parametrize(("fill", "missing"), [(True, [3, 1]), (False, [0, 0])])
def test_own_groups_that_nobody_offers_to_spare_are_missing(fill, missing) -> None:
    loop = Loop(local=5, external=3, rules=Rules(fill=fill))
    found = [loop.external.missing()]
    loop.prove(ANNA)
    loop.pool.add(pooled(number) for number in range(9))
    assert [*found, loop.external.missing()] == missing, "two are a quarter of eight"


def test_an_update_is_credited_to_the_policy_after_it_and_to_the_authors() -> None:
    loop = Loop(local=4, external=4, teacher=Half(), select=AutoSelection)
    loop.prove(ANNA)
    loop.pool.add([pooled(1), pooled(2, author=BEN), pooled(3, (1.0, 1.0), author=BEN)])
    written = loop.source.generate(14, Stopwatch())
    own = written[:12]
    taken = loop.external.take(1, written, own)
    assert taken.wanted == 12 - 6, "one in two teaches"
    assert {group.key for group in taken.groups} == {
        GroupKey(ANNA, 7, 1),
        GroupKey(BEN, 7, 2),
    }
    assert taken.proven == {ANNA}
    assert [each.own for each in taken.training] == [False, False]
    assert loop.intake.seen == [group.key for group in written]
    before = loop.accounts.tried()
    useful = tuple(0.5 * (group.author == BEN) for group in taken.groups)
    update = UpdateStats(skipped=False, useful=useful)
    loop.external.credit(own, taken, update, 9)
    keys = [*(GroupKey(b"", *group.key) for group in own), *(group.key for group in taken.groups)]
    assert loop.pool.lineage(9) == sorted(keys)
    assert loop.accounts.tried()[BEN] == 0.5 and loop.accounts.tried()[ANNA] < before[ANNA]
    assert loop.counters.snapshot()["external_useless"] == 1


def test_what_is_admitted_counts_in_the_lead_once_whether_it_is_taken_or_not() -> None:
    loop = Loop(local=16, external=1)
    loop.prove(ANNA)
    loop.pool.add([pooled(number, (1.0, 1.0, 0.0), env="sums") for number in range(8)])
    assert loop.rounds.step().lead > 0.0, "two in three are right, and half of the node's own"
    (theirs,) = (n for author, *_, n, _ in loop.lead.state_dict()["seen"] if author == ANNA.hex())
    assert theirs == 8.0
    loop.rounds.step()
    (theirs,) = (n for author, *_, n, _ in loop.lead.state_dict()["seen"] if author == ANNA.hex())
    assert theirs == 8.0 * KEPT


def test_nothing_tells_who_is_ahead_where_nothing_is_from_outside() -> None:
    assert Loop(local=3, external=1).rounds.step().lead is None


def test_of_an_updates_external_groups_those_of_no_use_are_counted() -> None:
    loop = Loop(local=8, external=4, rules=Rules(fill=False))
    loop.prove(ANNA, BEN)
    loop.pool.add([pooled(1), pooled(2), pooled(3, author=BEN)])
    loop.learn(useful=(0.0, 0.25, 0.0))
    loop.rounds.step()
    assert loop.counters.snapshot()["external_useless"] == 2


def too_long(number: int, author: bytes):
    return pooled(number, author=author, texts=["x" * 600, "y"])


def test_a_group_that_nothing_is_left_of_earns_its_author_nothing_and_is_not_trained_on() -> None:
    loop = Loop(local=3, external=1)
    loop.pool.add([too_long(1, ANNA)])
    outcome = loop.rounds.step()
    assert outcome.external == ()
    assert outcome.trained == len(outcome.own) == len(loop.pool.lineage(1))
    assert loop.accounts.tried() == {ANNA: 0.0}
    assert loop.pool.fresh() == []


def test_shares_are_of_what_is_left_of_a_choice() -> None:
    loop = Loop(local=4, external=4)
    loop.prove(ANNA, BEN)
    loop.pool.add([pooled(1), pooled(2), too_long(1, BEN), too_long(2, BEN)])
    written = loop.source.generate(8, Stopwatch())
    taken = loop.external.take(1, written, written[:4])
    assert [each.author for each in taken.groups] == [ANNA], "of five groups two are too many"
    assert len(taken.training) == 1
    assert loop.counters.snapshot()["external_over_share"] == 1


def test_shares_of_an_author_and_of_newcomers_are_those_asked_for(monkeypatch) -> None:
    parts = Parts(
        monkeypatch,
        mixture__select="uniform",
        mixture__local=4,
        mixture__external=4,
        mixture__author_share=0.25,
        mixture__unproven_share=0.5,
    )
    parts.pool.add(pooled(n, author=author) for author in (ANNA, BEN) for n in range(4))
    parts.run(1)
    assert len(parts.outcomes[0].external) == 4, "half of eight, though no author may have three"


def intake_of(counters: Counters, *refuse: str) -> Intake:
    config = configured(mixture__filters=list(refuse))
    policy = random_policy(hidden=32, layers=1)
    return open_intake(config, policy, manifest(), b"secret", counters)


def test_only_the_filters_that_are_asked_for_look_at_external_groups() -> None:
    around = ("<answer>" + "ab" * 20 + "</answer>", 1.0)
    trails = ("<answer>1</answer>" + "0123456789" * 2, 1.0)
    wrong = ("18", 0.0)
    counters = Counters()
    intake = intake_of(counters, "unlikely", "copied")
    for answer in (around, trails):
        assert intake.take(sent([answer, wrong])) is not None
    long = ("".join(map(chr, range(40, 100))), 1.0)
    assert intake.take(sent([long, wrong])) is not None
    assert intake.take(sent([long, wrong], author=b"s" * 32)) is None
    assert counters.snapshot()["external_refused{reason=copied}"] == 1
    intake = intake_of(counters, "trailing")
    assert intake.take(sent([around, wrong])) is not None
    assert intake.take(sent([trails, wrong])) is None, "sums are answered in a tag"


def test_an_external_group_is_cut_to_the_size_of_an_own_one() -> None:
    counters = Counters()
    taken = intake_of(counters).take(sent([("1" * 60, 1.0), ("2" * 60, 0.0), ("3" * 60, 0.5)]))
    assert [len(done.ids) for done in taken.completions] == [40, 40]
    assert counters.snapshot()["external_completions_cut"] == 1
