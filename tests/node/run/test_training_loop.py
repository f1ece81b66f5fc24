import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from experiments.virtual_clock import VirtualClock
from node.config.learning import MixtureSection
from node.engines.transformers.engine import TransformersEngine
from node.errors import NodeError
from node.evaluation.evaluator import Evaluation
from node.learner.update_stats import UpdateStats
from node.run import training_loop as module
from node.run.training_loop import open_experience
from node.run.update_groups import Outcome, Rules, earned
from swarm.common.counters import Counters
from swarm.groups import GroupKey, Mean, Split, TaskRef
from swarm.journal import MEMORY, Journal, JournalError
from swarm.mixture import AutoSelection
from swarm.verification import CRASHED, VerifierError
from tests.node.rollout.overlap_parts import Teacher
from tests.node.run import trainer_parts
from tests.node.run.rounds_parts import REWARD, Half, Loop
from tests.node.run.trainer_parts import Parts
from tests.swarm.experience_parts import ANNA, BEN, START, lineage, pooled

TASKS = tuple(TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(2))
SIZES = {"mixture__local": 3, "mixture__external": 1}
GROUPS = (*(pooled(i, author=ANNA) for i in range(3)), pooled(9, author=BEN))
BOTH = pytest.mark.parametrize("streaming", [False, True], ids=["sync", "async"])


def run(loop, limit):
    loop.rounds.run(limit, threading.Event())
    return loop


@pytest.mark.parametrize(("limit", "saved"), [(4, [2, 4]), (5, [2, 4, 5])])
def test_checkpoint_is_saved_periodically_and_at_the_end(limit, saved):
    loop = run(Loop(checkpoint_every=2), limit)
    assert loop.saved == [(number, number) for number in saved]
    timed = [number > 1 and number % 2 == 1 for number in range(1, limit + 1)]
    told = [o.seconds.get("checkpoint") is not None for o in loop.outcomes]
    assert told == timed, "the next round reports a checkpoint's time"
    loop = Loop(checkpoint_every=1)
    loop.reported = lambda outcome: loop.saved.append(("told", outcome.round))
    assert run(loop, 2).saved == [("told", 1), (1, 1), ("told", 2), (2, 2)], "reports come first"


def test_best_policy_is_saved_between_checkpoints():
    loop = Loop(eval_every=2, checkpoint_every=100)
    loop.kept = {4, 7}
    run(loop, 7)
    assert loop.rated == [(number, REWARD) for number in (0, 2, 4, 7)]
    assert loop.saved == [(4, 4), (7, 7), (7, 7)], "the last round is also saved at the end"


def test_evaluation_precedes_the_update_except_in_last_round():
    loop = run(Loop(eval_every=2), 5)
    assert loop.evaluated == [0, 2, 5]
    assert [o.evaluation for o in loop.outcomes] == [REWARD, None, REWARD, None, REWARD]


def test_first_round_logs_its_phases(caplog):
    with caplog.at_level("INFO"):
        run(Loop(eval_every=1), 2)
    told = [line for line in caplog.messages if line.startswith("first round: ")]
    first, *_, last = told
    assert (first, last) == ("first round: evaluate", "first round: update")
    assert len(set(told)) == len(told), "each phase is logged once"


@pytest.mark.parametrize(("discard", "shared"), [(True, [0, 2]), (False, [0, 1, 2, 3])])
def test_discard_rule_stops_publishing_uninformative_groups(discard, shared):
    loop = Loop(local=4, rules=Rules(discard=discard), teacher=Half())
    loop.rounds.step()
    assert [index for _, index in loop.published[0]] == shared
    assert [index for _, index in loop.intake.seen] == [0, 1, 2, 3]


@pytest.mark.parametrize(("keep", "trained"), [(0, [*range(6)]), (2, [0, 2]), (9, [0, 2, 4])])
def test_keep_rule_limits_the_update_to_informative_groups(keep, trained):
    loop = Loop(local=6, rules=Rules(keep=keep), teacher=Half())
    outcome = loop.rounds.step()
    assert [key.number for key in lineage(loop.pool, 1)] == trained
    assert (len(outcome.local), outcome.trained) == (6, len(trained))
    assert [index for _, index in loop.intake.seen] == [*range(6)], "lengths count all groups"


def test_local_groups_replace_missing_peer_groups():
    loop, without = (Loop(local=5, external=3, rules=Rules(fill=fill)) for fill in (True, False))
    assert len(loop.rounds.step().local) == 8 and len(without.rounds.step().local) == 5
    for each, local in ((loop, 8 - 2), (without, 5)):
        each.prove(ANNA)
        each.pool.add(pooled(number) for number in range(9))
        assert len(each.rounds.step().local) == local, "two groups are a quarter of eight"


def test_peer_groups_are_trained_credited_and_recorded():
    loop = Loop(local=3, external=1)
    loop.prove(BEN)
    loop.pool.add([pooled(1), pooled(2, author=BEN)])
    before = {**loop.accounts.tried()}
    loop.learn(useful=(0.75,))
    outcome = loop.rounds.step()
    (chosen,) = outcome.external
    assert loop.accounts.tried()[chosen.author] > before.get(chosen.author, 0.0) * 11 / 12
    local = [GroupKey(b"", *group.key) for group in outcome.local]
    assert lineage(loop.pool, 1) == [*local, chosen.key] and outcome.trained == len(local) + 1
    assert outcome.proven == {BEN}
    assert chosen.key not in {candidate.key for candidate in loop.pool.fresh()}


def test_peer_limits_count_only_trained_local_groups():
    loop = Loop(local=8, external=8, rules=Rules(fill=False, keep=1))
    loop.prove(ANNA)
    loop.pool.add(pooled(number) for number in range(8))
    assert len(loop.rounds.step().external) == 1, "eight trained groups would allow two"
    assert len(loop.pool.fresh()) == 7, "later rounds can use the others"


@pytest.mark.parametrize(("measured", "room"), [(True, 2), (False, 7)])
def test_costly_peer_groups_get_less_room_unless_experiments_ignore_costs(measured, room):
    loop = Loop(local=4, external=1, rules=Rules(costs=measured), select=AutoSelection)
    loop.prove(ANNA)
    loop.pool.add([pooled(1)])
    first = loop.rounds.step()
    assert len(first.external) == 1
    costs = first.cost_local, first.cost_external
    assert all(cost is not None and cost > 0 for cost in costs) is measured
    if measured:
        loop.peer_advantage.observe_costs(Mean(1e9, 1e9), Mean(1e9, 4e9))
    second = loop.rounds.step()
    assert second.external_wanted == room
    assert len(second.local) == 4 + 1


def test_outcome_has_phase_times_and_wanted_peer_groups():
    sizes = {"local": 4, "external": 1, "select": AutoSelection}
    outcome = run(Loop(rules=Rules(keep=1), eval_every=1, **sizes), 1).outcomes[0]
    assert outcome.external_wanted == 12 - 1, "trained local groups count"
    phases = {"publish", "mix", "update", "evaluate", "generate", "verify", "total"}
    assert phases <= outcome.seconds.keys()
    loop = Loop(rules=Rules(fill=False), teacher=Half(), **sizes)
    assert loop.rounds.step().external_wanted == 12 - 2, "informative groups count"


def test_run_ends_at_its_limit_or_on_stop_event():
    assert [o.round for o in run(Loop(), 3).outcomes] == [1, 2, 3]
    loop, stop = Loop(), threading.Event()
    loop.reported = lambda outcome: outcome.round == 2 and stop.set()
    loop.rounds.run(4, stop)
    assert loop.rounds.round == 2


def test_three_consecutive_failures_end_the_run_with_cause():
    loop = Loop()
    loop.fail([OSError(), OSError(), None, OSError(), OSError(), None])
    assert [o.round for o in run(loop, 2).outcomes] == [1, 2], "the failures are not in a row"
    assert loop.counters.snapshot()["rounds_failed"] == 4
    loop, last = Loop(checkpoint_every=2), OSError("the last")
    loop.fail([None, OSError("1"), OSError("2"), last, None])
    with pytest.raises(NodeError, match="3 rounds failed in a row") as failed:
        run(loop, 5)
    assert failed.value.__cause__ is last and loop.saved == [(1, 1)], "the round before is saved"
    assert loop.counters.snapshot()["rounds_failed"] == 3


def test_failed_checkpoint_is_retried_after_the_next_round():
    loop, errors = Loop(checkpoint_every=3), iter([OSError("once"), OSError("twice")])
    save = loop.rounds.save

    def failing(number):
        if error := next(errors, None):
            raise error
        save(number)

    loop.rounds.save = failing
    run(loop, 7)
    assert loop.saved == [(5, 5), (6, 6), (7, 7)] and len(loop.outcomes) == 7


def test_run_ends_if_checkpoints_cannot_be_saved():
    loop, full = Loop(checkpoint_every=3), OSError("always")
    loop.rounds.save = Mock(side_effect=full)
    with pytest.raises(NodeError, match="3 rounds failed in a row") as failed:
        run(loop, 20)
    assert failed.value.__cause__ is full and len(loop.outcomes) == 5


@pytest.mark.parametrize(
    "error", [NodeError("no", "place", "to go on"), JournalError("journal", "is full", "free it")]
)
def test_unrecoverable_error_ends_the_run(error):
    loop = Loop(checkpoint_every=3)
    loop.fail([None, None, error])
    with pytest.raises(type(error)) as failed:
        run(loop, 5)
    assert failed.value is error and "rounds_failed" not in loop.counters.snapshot()
    assert loop.saved == [(2, 2)], "the rounds before are saved"


def test_failed_final_save_does_not_hide_the_first_error(caplog):
    loop, error = Loop(checkpoint_every=3), NodeError("no", "memory", "to go on")
    loop.fail([None, error])
    loop.rounds.save = Mock(side_effect=OSError("no space"))
    with pytest.raises(NodeError) as failed:
        run(loop, 5)
    assert failed.value is error and "saving round 1 failed: no space" in caplog.text


def test_rounds_follow_the_configured_sizes_and_intervals(monkeypatch):
    turns = {"schedule__eval_every": 3, "schedule__checkpoint_every": 2}
    parts = Parts(monkeypatch, **SIZES, **turns).run(4)
    assert [len(outcome.local) for outcome in parts.outcomes] == [4] * 4
    assert [o.evaluation is not None for o in parts.outcomes] == [True, False, False, True]
    assert parts.saved == [2, 4]
    parts.trainer.close()
    assert parts.calls[-1] == "close"
    parts = Parts(monkeypatch, rules=Rules(fill=False), **SIZES).run(7, done=5)
    assert len(parts.outcomes[0].local) == 3
    assert [outcome.round for outcome in parts.outcomes] == [6, 7]


@pytest.mark.parametrize(
    ("prompts", "best"), [((), [0.5, 1.0]), (("1", "2"), [0.5, 1.0]), ((None, "2"), [None, 1.0])]
)
def test_forgetting_alarm_stores_the_mean_reward_per_task(monkeypatch, prompts, best):
    """A task without a prompt does not count as unsolved."""
    result = Evaluation(TASKS, ((1.0, 0.0), (1.0, 1.0)), prompts.count(None), prompts=prompts)
    stub = SimpleNamespace(evaluate=lambda: result)
    monkeypatch.setattr(module, "Evaluator", lambda *parts: stub)
    parts = Parts(monkeypatch).run(1)
    assert parts.outcomes[0].evaluation == 0.75
    assert parts.trainer.alarm.state_dict()["best"] == best


def test_trainer_generates_a_missing_secret(monkeypatch):
    opened = Mock(side_effect=module.open_intake)
    monkeypatch.setattr(module, "open_intake", opened)
    for given in (b"", b"", b"mine"):
        Parts(monkeypatch, secret=given)
    first, second, third = (call.args[2] for call in opened.call_args_list)
    assert len(first) == len(second) == 16 and first != second and third == b"mine"


def test_trainer_keeps_the_peer_reward_advantage(monkeypatch):
    parts = Parts(monkeypatch, mixture__local=4, mixture__external=2, mixture__max_uses=2)
    parts.accounts.prove([(ANNA, 1.0)] * 8)
    parts.pool.add([pooled(1, env="sums"), pooled(2, author=BEN)])
    assert parts.run(1).outcomes[0].peer_advantage == parts.trainer.peer_advantage.value is not None


def experience_of(salt=b"salt", **changes):
    clock = VirtualClock(START)
    journal = Journal(MEMORY, clock)
    return open_experience(MixtureSection(**changes), journal, clock, Counters(), salt)


def filled(experience):
    experience.pool.add(pooled(1, author=number.to_bytes(32)) for number in range(40))
    return [candidate.key.author for candidate in experience.pool.fresh()]


def test_config_limits_replay_buffer_and_unproven_authors():
    salts = b"salt", b"salt", b"other"
    first, same, other = (filled(experience_of(salt, pool_groups=8)) for salt in salts)
    assert len(first) == 8 and first == same != other
    pool = experience_of(max_uses=3).pool
    pool.add([pooled(1)])
    assert [len(pool.consume(pool.fresh(), step)) for step in range(4)] == [1, 1, 1, 0]
    experience = experience_of(pool_groups=16, unproven_share=0.125)
    experience.accounts.prove([(ANNA, 1.0)] * 8)
    experience.pool.add(pooled(number, author=ANNA) for number in range(16))
    assert len([author for author in filled(experience) if author != ANNA]) == 2


@pytest.mark.parametrize(
    ("trained", "proven", "groups", "shares"),
    [
        (12, {ANNA}, GROUPS, (3 / 12, 1 / 12)),
        (12, {}, GROUPS, (3 / 12, 4 / 12)),
        (2, {}, (), (0.0, 0.0)),
        (0, {}, (), (None, None)),
    ],
)
def test_shares_count_all_groups_of_the_update(trained, proven, groups, shares):
    done = Outcome(1, 1, (), groups, UpdateStats(), None, {}, 9, trained, frozenset(proven))
    assert (done.author_share, done.unproven_share) == pytest.approx(shares)


def test_authors_earn_usefulness_only_for_informative_groups():
    groups = [pooled(1, author=ANNA), pooled(2, (1.0, 1.0), author=BEN), pooled(3, author=BEN)]
    assert earned(groups, (0.2, 0.9, 0.0)) == [(ANNA, 0.2), (BEN, 0.0)]


@BOTH
@pytest.mark.parametrize(
    ("length", "counter"), [(0, "own_prompts_empty"), (600, "own_prompts_too_long")]
)
def test_rounds_survive_unanswerable_questions(monkeypatch, streaming, length, counter):
    class Odd(Teacher):
        """Gives some tasks a prompt of the odd length, always the same ones."""

        def prompts(self, tasks):
            return ["?" * (5 if task.seed % 3 else length) for task in tasks]

    assert trained(monkeypatch, Odd, streaming).counters.snapshot()[counter] > 0


@BOTH
def test_rounds_survive_unbuildable_tasks(monkeypatch, streaming):
    order = []

    class Often(Teacher):
        """Fails for three of four training tasks, always the same ones."""

        def prompts(self, tasks):
            drawn = [task for task in tasks if task.split is Split.TRAIN]
            order.extend(task for task in drawn if task not in order)
            if any(order.index(task) % 4 < 3 for task in drawn):
                raise VerifierError(CRASHED, "this one cannot be built")
            return super().prompts(tasks)

    counters = trained(monkeypatch, Often, streaming).counters
    assert counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def trained(monkeypatch, teacher, streaming):
    """Return a trainer after six rounds with one task each and no failed round."""
    monkeypatch.setattr(trainer_parts, "Teacher", teacher)
    monkeypatch.setattr(trainer_parts, "Closing", lambda p, _: TransformersEngine(p, seed=0))
    few = {"mixture__local": 1, "schedule__eval_every": 1000, "engine__max_new_tokens": 4}
    parts = Parts(monkeypatch, streaming=streaming, **few).run(6)
    assert len(parts.outcomes) == 6 and "rounds_failed" not in parts.counters.snapshot()
    return parts
