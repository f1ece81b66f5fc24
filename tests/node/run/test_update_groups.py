import logging
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest

from node.learner.update_stats import UpdateStats
from node.monitor.record import Stopwatch
from node.policy.policy import Policy
from node.rollout.group_writer import UnfinishedGroups
from node.run import update_groups as module
from node.run.update_groups import MODEL_CHARACTERS, open_intake, public_name, unread
from node.storage.run_folder import ListedPeers, RunFolder
from protocol.identity import peer_id_of
from protocol.rollout import Completion, Finish, Group, Segment, Writer, encode_group
from swarm.common.counters import Counters
from swarm.groups import GroupKey, Origin
from swarm.mixture import AutoSelection
from swarm.peer_advantage import KEPT
from tests.node.rollout.overlap_parts import AtOnce, Teacher
from tests.node.rollout.test_groups import sent
from tests.node.run.rounds_parts import Half, Loop, Nothing
from tests.node.run.trainer_parts import Parts, configured
from tests.support import random_policy
from tests.swarm.experience_parts import ANNA, BEN, lineage, pooled


def test_update_records_its_groups_and_credits_authors():
    loop = Loop(local=4, external=4, teacher=Half(), select=AutoSelection)
    loop.prove(ANNA)
    loop.pool.add([pooled(1), pooled(2, author=BEN), pooled(3, (1.0, 1.0), author=BEN)])
    written = loop.source.generate(14, Stopwatch())
    local = written[:12]
    taken = loop.external.take(1, written, local)
    assert taken.wanted == 12 - 6, "half of the 12 local groups are informative"
    assert {group.key for group in taken.groups} == {GroupKey(ANNA, 7, 1), GroupKey(BEN, 7, 2)}
    assert taken.proven == {ANNA} and [each.local for each in taken.training] == [False, False]
    assert loop.intake.seen == [group.key for group in written]
    before = loop.accounts.tried()
    useful = tuple(0.5 * (group.author == BEN) for group in taken.groups)
    loop.external.credit(local, taken, UpdateStats(skipped=False, useful=useful), 9)
    keys = [*(GroupKey(b"", *group.key) for group in local), *(group.key for group in taken.groups)]
    assert lineage(loop.pool, 9) == sorted(keys)
    assert loop.accounts.tried()[BEN] == 0.5 and loop.accounts.tried()[ANNA] < before[ANNA]
    assert loop.counters.snapshot()["external_useless"] == 1


def test_peer_reward_advantage_counts_each_group_once():
    loop = Loop(local=16, external=1)
    loop.prove(ANNA)
    loop.pool.add([pooled(number, (1.0, 1.0, 0.0), env="sums") for number in range(8)])
    assert loop.rounds.step().peer_advantage > 0.0, "two thirds against half are right"
    for expected in (8.0, 8.0 * KEPT):
        seen = loop.peer_advantage.state_dict()["seen"]
        assert [n for author, *_, n, _ in seen if author == ANNA.hex()] == [expected]
        loop.rounds.step()
    assert Loop(local=3, external=1).rounds.step().peer_advantage is None, "without peer groups"


def too_long(number, author):
    return pooled(number, author=author, texts=["x" * 600, "y"])


def test_emptied_group_is_not_trained_and_earns_nothing():
    loop = Loop(local=3, external=1)
    loop.pool.add([too_long(1, ANNA)])
    outcome = loop.rounds.step()
    assert outcome.external == ()
    assert outcome.trained == len(outcome.local) == len(lineage(loop.pool, 1))
    assert loop.accounts.tried() == {ANNA: 0.0} and loop.pool.fresh() == []


def test_shares_count_only_usable_groups():
    loop = Loop(local=4, external=4)
    loop.prove(ANNA, BEN)
    loop.pool.add([pooled(1), pooled(2), too_long(1, BEN), too_long(2, BEN)])
    written = loop.source.generate(8, Stopwatch())
    taken = loop.external.take(1, written, written[:4])
    assert [each.author for each in taken.groups] == [ANNA], "two exceed the author's share"
    assert len(taken.training) == 1 and loop.counters.snapshot()["external_over_share"] == 1


def test_config_sets_author_and_unproven_shares(monkeypatch):
    options = {"select": "uniform", "local": 4, "external": 4}
    options |= {"author_share": 0.25, "unproven_share": 0.5}
    parts = Parts(monkeypatch, **{f"mixture__{key}": value for key, value in options.items()})
    parts.pool.add(pooled(n, author=author) for author in (ANNA, BEN) for n in range(4))
    parts.run(1)
    assert len(parts.outcomes[0].external) == 4, "four of eight; no author may have three"


def test_running_node_fills_updates_from_a_newly_trusted_peer(tmp_path):
    folder = RunFolder(tmp_path)
    trusted = ListedPeers("trusted", folder)
    loop = Loop(local=4, external=4, select=AutoSelection, trusted=trusted.authors)
    loop.pool.add(pooled(number) for number in range(30))
    taken = [len(loop.rounds.step().external)]
    trusted.write([peer_id_of(ANNA)])
    outcome = loop.rounds.step()
    taken.append(len(outcome.external))
    assert outcome.external_wanted == len(outcome.external) and not outcome.unproven_share
    folder.trusted.write_text("nobody\n")
    taken.append(len(loop.rounds.step().external))
    trusted.write([])
    taken.append(len(loop.rounds.step().external))
    assert taken == [2, 8, 8, 2], "a damaged file changes nothing"


def test_peer_groups_of_hidden_chance_envs_are_marked():
    for names in ([], [pooled(1).group.env]):
        loop = Loop(local=2, external=2, hidden=lambda names=names: {*names})
        loop.pool.add([pooled(1)])
        written = loop.source.generate(2, Stopwatch())
        (training,) = loop.external.take(1, written, written).training
        assert {done.hidden for done in training.completions} == {bool(names)}
        assert not any(done.hidden for each in written for done in each.training.completions)


def test_peer_groups_of_hidden_chance_envs_replace_no_local_groups():
    missing = []
    for names in ([], [pooled(1).group.env]):
        keys = {"local": 4, "external": 4, "select": AutoSelection, "trusted": lambda: {ANNA}}
        loop = Loop(hidden=lambda names=names: {*names}, **keys)
        loop.pool.add(pooled(number) for number in range(30))
        missing.append(loop.external.missing())
    assert missing[0] < missing[1] == 4


def test_groups_of_a_blocked_author_are_not_trained_on():
    blocked = set[bytes]()
    loop = Loop(local=4, external=4, blocked=lambda: blocked)
    loop.prove(ANNA, BEN)
    loop.pool.add([*(pooled(n) for n in range(8)), *(pooled(n, author=BEN) for n in range(8))])
    assert {each.author for each in loop.rounds.step().external} == {ANNA, BEN}
    blocked.add(ANNA)
    assert {each.author for each in loop.rounds.step().external} == {BEN}
    assert loop.accounts.banned(ANNA) and not loop.accounts.banned(BEN)
    blocked.clear()
    assert {each.author for each in loop.rounds.step().external} == {ANNA, BEN}
    assert not loop.accounts.banned(ANNA)


def test_groups_of_a_banned_trusted_peer_are_not_used():
    loop = Loop(local=8, external=4, trusted=lambda: {ANNA})
    loop.prove(BEN)
    loop.pool.add([*(pooled(n) for n in range(30)), *(pooled(n, author=BEN) for n in range(30))])
    assert {each.author for each in loop.rounds.step().external} == {ANNA, BEN}
    loop.accounts.refuse(ANNA, "reward_mismatch", 40)
    assert {each.author for each in loop.rounds.step().external} == {BEN}
    loop.accounts.refuse(BEN, "reward_mismatch", 40)
    assert loop.rounds.step().external == () and loop.external.missing() == 4


def test_peer_banned_during_an_update_earns_nothing():
    loop = Loop(local=4, external=4)
    loop.pool.add([pooled(1)])
    written = loop.source.generate(4, Stopwatch())
    taken = loop.external.take(1, written, written)
    loop.accounts.refuse(ANNA, "bad_signature")
    loop.external.credit(written, taken, UpdateStats(skipped=False, useful=(1.0,)), 1)
    assert loop.accounts.get(ANNA).reputation.earned == 0.0


ONE_TURN = (
    "{% if messages[1:] %}{{ raise_exception('one turn') }}{% endif %}{{ messages[0].content }}"
)


class Games(Teacher):
    environments = frozenset({"guess"})


def played(number, author=ANNA):
    """Return a group with two turns."""
    segments = [
        (
            Segment(Writer.POLICY, first),
            Segment(Writer.ENVIRONMENT, "higher"),
            Segment(Writer.POLICY, "5"),
        )
        for first in "34"
    ]
    done = [Completion(each, float(n), Finish.STOP) for n, each in enumerate(segments)]
    group = Group("guess", 0, 7, number, tuple(done))
    return replace(pooled(number, author=author), group=group, encoded=encode_group(group))


def test_one_turn_template_survives_multi_turn_peer_groups():
    """An unreadable group is omitted; an unforeseen failure costs only its group."""
    for scorer, counted in ((Games(), {}), (Teacher(), {"external_failed": 2})):
        loop = Loop(local=2, external=6, select=AutoSelection)
        model, tokenizer = loop.policy.model, loop.policy.tokenizer
        tokenizer.chat_template = ONE_TURN
        loop.intake.policy = policy = Policy(model, tokenizer, "one turn")
        loop.external.unread = unread(policy, scorer)
        loop.prove(ANNA)
        loop.pool.add([played(1), played(2), pooled(3, author=BEN)])
        loop.rounds.run(3, threading.Event())
        used = [each.author for outcome in loop.outcomes for each in outcome.external]
        assert used == [BEN] and loop.accounts.reputation(ANNA) == 1.0
        seen = loop.counters.snapshot()
        assert {name: n for name, n in seen.items() if name == "external_failed"} == counted
    assert unread(random_policy(hidden=32, layers=1), Games()) == frozenset()


def intake_of(counters, *refuse, **keys):
    keys |= {"engine__max_new_tokens": 60, "mixture__filters": list(refuse)}
    config = configured(**keys)
    return open_intake(config, random_policy(hidden=32, layers=1), b"secret", counters)


def test_only_configured_filters_check_peer_groups():
    around = ("<answer>" + "ab" * 20 + "</answer>", 1.0)
    trails, wrong = ("<answer>1</answer>" + "0123456789" * 2, 1.0), ("18", 0.0)
    counters = Counters()
    intake = intake_of(counters, "unlikely", "copied")
    for answer in (around, trails):
        assert intake.take(sent([answer, wrong])) is not None
    long = ("".join(map(chr, range(40, 99))), 1.0)
    assert intake.take(sent([long, wrong])) is not None
    assert intake.take(sent([long, wrong], author=b"s" * 32)) is None
    assert counters.snapshot()["external_refused{reason=copied}"] == 1
    intake = intake_of(counters, "trailing")
    assert intake.take(sent([around, wrong])) is not None
    assert intake.take(sent([trails, wrong])) is None, "answers to sums end with a tag"
    counters = Counters()
    fits, long = [("1" * 59, 1.0), ("2" * 59, 0.0), ("3" * 59, 0.5)], ("1" * 60, 1.0)
    taken = intake_of(counters).take(sent(fits))
    assert [len(done.ids) for done in taken.completions] == [60, 60]
    assert counters.snapshot() == {"external_completions_cut": 1}
    assert intake_of(counters).take(sent([long, wrong])) is None
    limited = intake_of(counters, learner__max_completion_tokens=59)
    assert limited.take(sent([fits[0], wrong])) is None


def test_engine_with_current_weights_is_not_updated():
    loop = Loop(teacher=Nothing())
    loop.rounds.step()
    assert loop.calls == []


def test_update_problems_are_counted_and_logged(caplog):
    def counted(**told):
        loop = Loop()
        loop.learn(**told)
        loop.rounds.step()
        return loop.counters.snapshot()

    with caplog.at_level(logging.WARNING):
        counts = counted(refused=1, unlikely=2, halved=3, logprob_mismatch=0.06)
    names = ("steps_refused", "external_refused{reason=unlikely}", "micro_batch_halved")
    assert counts == dict(zip((*names, "logprob_mismatches"), (1, 2, 3, 1), strict=True))
    assert "differ from the learner's by 0.06 nats" in caplog.text
    assert "explains 0.001" in caplog.text
    assert [counted(logprob_mismatch=quiet) for quiet in (5e-4, None)] == [{}, {}]


def test_mismatch_is_measured_with_peer_groups_only():
    loop = Loop(local=8, external=4, teacher=Nothing())
    loop.prove(ANNA)
    loop.pool.add([pooled(1), pooled(2)])
    outcome = loop.rounds.step()
    assert outcome.external and not outcome.update.skipped
    assert outcome.update.staleness == (), "no local token is trained"
    assert outcome.update.logprob_mismatch is not None
    assert loop.counters.snapshot()["logprob_mismatches"] == 1


@pytest.mark.parametrize(
    ("changes", "rests"),
    [
        ({}, False),
        ({"engine__sleep_mode": True}, True),
        ({"streaming": True, "schedule__oversample": 0.5}, True),
        ({"streaming": True}, False),
    ],
)
def test_engine_sleeps_if_it_shares_device_or_oversamples(monkeypatch, changes, rests):
    parts = Parts(monkeypatch, **changes).run(1)
    parts.trainer.close()
    assert ("sleep" in parts.calls) == rests


@pytest.mark.parametrize(
    ("changes", "decoupled"),
    [
        ({"streaming": True, "schedule__max_staleness": 1}, True),
        ({"streaming": True, "schedule__max_staleness": 0}, False),
        ({}, False),
    ],
)
def test_learner_is_decoupled_only_if_groups_can_be_stale(monkeypatch, changes, decoupled):
    opened = Mock(side_effect=module.open_learner)
    monkeypatch.setattr(module, "open_learner", opened)
    options = {"correction": "tis", "correction_options": {"cap": 3.0}}
    keys = {f"mixture__{key}": value for key, value in options.items()}
    keys |= {"engine__temperature": 0.75, "mixture__filters": ["unlikely"]}
    Parts(monkeypatch, **keys, **changes)
    Parts(monkeypatch, mixture__filters=[])
    expected = {**options, "decoupled": decoupled, "temperature": 0.75, "floor": True}
    first, second = (call.kwargs for call in opened.call_args_list)
    assert expected.items() <= first.items() and not second["floor"]


def test_published_groups_respect_swarm_limit_and_name_policy(monkeypatch):
    parts = Parts(monkeypatch, engine__temperature=0.75).run(2)
    origin = Origin(0, "random-0", parts.policy.encoding, 0.75, 40)
    assert parts.published == [
        ([], origin),
        ([0, 1, 2, 3], origin),
        ([4, 5], replace(origin, policy_step=1)),
    ]
    assert [len(outcome.local) for outcome in parts.outcomes] == [4, 4], "all groups are trained"


def test_close_saves_unfinished_groups_for_next_run(monkeypatch):
    # With threads, prompts could still be in preparation when the last update ends.
    threads = "node.run.training_loop.ThreadPoolExecutor"
    monkeypatch.setattr(threads, lambda *arguments: AtOnce())
    parts = Parts(monkeypatch, streaming=True, schedule__max_staleness=1).run(2)
    parts.trainer.close()
    assert parts.calls[-2:] == ["poll", "close"], "the engine is polled, then closed"
    assert "pause" in parts.calls
    assert any(group.kept for group in UnfinishedGroups(parts.journal).groups())


def test_resumed_async_run_keeps_its_policy_version(monkeypatch):
    parts = Parts(monkeypatch, streaming=True, schedule__max_staleness=1)
    parts.policy.version = 5
    parts.run(6, done=5)
    versions = {group.version for group in UnfinishedGroups(parts.journal).groups()}
    assert versions and versions <= {5, 6}


def test_resume_rewinds_groups_newer_than_the_checkpoint(monkeypatch):
    told, rewind = [], UnfinishedGroups.rewind
    monkeypatch.setattr(UnfinishedGroups, "rewind", lambda *a: told.append(a[1:]) or rewind(*a))
    parts = Parts(monkeypatch, streaming=True)
    parts.policy.version = 4
    parts.run(6, done=5)
    assert told == [(5, 4)]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("/home/anna/secret/mine", "mine"),
        ("naïve\n", "na?ve?"),
        ("x" * 100, "x" * MODEL_CHARACTERS),
        ("/", "model"),
    ],
)
def test_public_model_name_hides_paths_and_is_printable(name, shown):
    assert public_name(name) == shown
