"""What a round does in which order, what it tells whom, and when a run ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from node.errors import NodeError
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.rollout.replay import SemiOnline
from node.run.outcome import Outcome, Rules
from swarm.groups import GroupKey, PooledGroup
from swarm.journal import JournalError
from swarm.mixture.selection import AutoSelection
from tests.node.run.rounds_parts import REWARD, Half, Loop
from tests.swarm.experience_parts import ANNA, BEN, pooled


def run(loop: Loop, limit: int) -> Loop:
    loop.rounds.run(limit, threading.Event())
    return loop


@pytest.mark.parametrize(("limit", "saved"), [(4, [2, 4]), (5, [2, 4, 5])])
def test_a_checkpoint_is_written_every_so_many_rounds_and_at_the_end(limit, saved) -> None:
    loop = run(Loop(checkpoint_every=2), limit)
    assert loop.saved == [(number, number) for number in saved]
    assert [o.seconds.get("checkpoint") is not None for o in loop.outcomes] == [
        number > 1 and (number - 1) % 2 == 0 for number in range(1, limit + 1)
    ], "its time is known only once the round was told"


def test_a_round_is_told_before_its_checkpoint_so_that_none_goes_untold() -> None:
    loop = Loop(checkpoint_every=1)
    told: list[object] = []
    loop.reported = lambda outcome: told.append(("told", outcome.round))
    loop.saved = told
    run(loop, 2)
    assert told == [("told", 1), (1, 1), ("told", 2), (2, 2)]


def test_the_best_policy_is_saved_where_no_checkpoint_is_due() -> None:
    loop = Loop(eval_every=2, checkpoint_every=100)
    loop.kept = {4, 7}
    run(loop, 7)
    assert loop.rated == [(number, REWARD) for number in (0, 2, 4, 7)]
    assert loop.saved == [(4, 4), (7, 7), (7, 7)], "and the last one at the end, as always"


def test_an_evaluation_looks_before_a_round_learns_and_in_the_last_one_afterwards() -> None:
    loop = run(Loop(eval_every=2), 5)
    assert loop.evaluated == [0, 2, 5]
    assert [o.evaluation for o in loop.outcomes] == [REWARD, None, REWARD, None, REWARD]


@pytest.mark.parametrize(("discard", "shared"), [(True, [0, 2]), (False, [0, 1, 2, 3])])
def test_groups_of_equal_rewards_are_not_shared_unless_told_to(discard, shared) -> None:
    loop = Loop(local=4, rules=Rules(discard=discard), teacher=Half())
    loop.rounds.step()
    assert [index for _, index in loop.published[0]] == shared
    assert [index for _, index in loop.intake.seen] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("keep", "trained"), [(0, [0, 1, 2, 3, 4, 5]), (2, [0, 2]), (9, [0, 2, 4])]
)
def test_an_update_is_of_all_own_groups_or_of_so_many_that_teach(keep, trained) -> None:
    loop = Loop(local=6, rules=Rules(keep=keep), teacher=Half())
    outcome = loop.rounds.step()
    assert [key.number for key in loop.pool.lineage(1)] == trained
    assert (len(outcome.own), outcome.trained) == (6, len(trained))
    assert [index for _, index in loop.intake.seen] == [*range(6)], "lengths are of all of them"


def test_what_an_update_has_room_for_follows_from_the_own_groups_that_teach() -> None:
    outcome = Loop(
        local=4, external=1, rules=Rules(fill=False), teacher=Half(), select=AutoSelection
    )
    assert outcome.rounds.step().external_wanted == 12 - 2


def test_own_groups_make_up_for_what_proven_authors_do_not_offer() -> None:
    loop = Loop(local=5, external=3)
    assert len(loop.rounds.step().own) == 8
    loop.prove(ANNA)
    loop.pool.add(pooled(number) for number in range(9))
    assert len(loop.rounds.step().own) == 8 - 2, "two are a quarter of an update of eight"
    assert len(Loop(local=5, external=3, rules=Rules(fill=False)).rounds.step().own) == 5


def test_external_groups_are_learned_from_credited_and_put_into_the_lineage() -> None:
    loop = Loop(local=3, external=1)
    loop.prove(BEN)
    loop.pool.add([pooled(1), pooled(2, author=BEN)])
    before = {**loop.accounts.tried()}
    loop.learn(useful=(0.75,))
    outcome = loop.rounds.step()
    (taken,) = outcome.external
    assert loop.accounts.tried()[taken.author] > before.get(taken.author, 0.0) * 11 / 12
    own = [GroupKey(b"", *group.key) for group in outcome.own]
    assert loop.pool.lineage(1) == [*own, taken.key]
    assert outcome.trained == len(own) + 1
    assert outcome.proven == {BEN}
    assert taken.key not in {candidate.key for candidate in loop.pool.fresh()}


def test_shares_are_of_the_own_groups_that_are_trained_on() -> None:
    loop = Loop(local=8, external=8, rules=Rules(fill=False, keep=1))
    loop.prove(ANNA)
    loop.pool.add(pooled(number) for number in range(8))
    assert len(loop.rounds.step().external) == 1, "not the two that eight own groups would allow"


def test_what_a_round_tells_has_its_times_and_what_there_was_room_for() -> None:
    loop = Loop(local=4, external=1, rules=Rules(keep=1), select=AutoSelection, eval_every=1)
    outcome = run(loop, 1).outcomes[0]
    assert outcome.external_wanted == 12 - 1, "of the own groups that are trained on"
    phases = {"publish", "mix", "update", "evaluate", "generate", "verify", "total"}
    assert phases <= outcome.seconds.keys()


class Scripted(SemiOnline):
    """Has played one task of another."""

    def __init__(self) -> None:
        pass

    def observe(self, groups: Sequence[PooledGroup]) -> None:
        pass

    def generate(self) -> list[TrainingGroup]:
        done = tuple(TrainingCompletion((n, 2), (True, True)) for n in range(2))
        return [TrainingGroup((1,), done, (0.0, 1.0), own=True)]


def test_entropies_are_told_of_the_groups_that_are_shown() -> None:
    alone, beside = (
        Loop(local=2, semi_online=scripted).rounds.step() for scripted in (None, Scripted())
    )
    assert (beside.trained, beside.scripted_tokens) == (3, 4)
    assert len(beside.update.entropies) == len(beside.own) == 2
    assert [len(told) for told in beside.update.entropies[0]] == [
        len(told) for told in alone.update.entropies[0]
    ]


def test_a_run_ends_at_its_limit_or_when_it_is_told_to() -> None:
    assert [o.round for o in run(Loop(), 3).outcomes] == [1, 2, 3]
    loop, stop = Loop(), threading.Event()

    def stop_in_the_second(outcome: Outcome) -> None:
        if outcome.round == 2:
            stop.set()

    loop.reported = stop_in_the_second
    loop.rounds.run(4, stop)
    assert loop.rounds.round == 2


def test_failures_that_are_not_in_a_row_do_not_end_a_run() -> None:
    loop = Loop()
    loop.fail([OSError(), OSError(), None, OSError(), OSError(), None])
    assert [o.round for o in run(loop, 2).outcomes] == [1, 2]
    assert loop.counters.snapshot()["rounds_failed"] == 4


def test_the_third_failure_in_a_row_ends_a_run_and_names_its_cause() -> None:
    loop = Loop(checkpoint_every=2)
    last = OSError("the last")
    loop.fail([OSError("1"), OSError("2"), last, None])
    with pytest.raises(NodeError, match="3 rounds failed in a row") as failed:
        run(loop, 5)
    assert failed.value.__cause__ is last
    assert loop.counters.snapshot()["rounds_failed"] == 3
    assert loop.saved == []


@pytest.mark.parametrize(
    "error", [NodeError("no", "place", "to go on"), JournalError("journal", "is full", "free it")]
)
def test_what_cannot_get_better_ends_a_run_at_once(error: Exception) -> None:
    loop = Loop()
    loop.fail([error])
    with pytest.raises(type(error)) as failed:
        run(loop, 5)
    assert failed.value is error
    assert loop.counters.snapshot() == {}
