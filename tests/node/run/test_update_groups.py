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


def test_an_update_is_credited_to_the_policy_after_it_and_to_the_authors():
    loop = Loop(local=4, external=4, teacher=Half(), select=AutoSelection)
    loop.prove(ANNA)
    loop.pool.add([pooled(1), pooled(2, author=BEN), pooled(3, (1.0, 1.0), author=BEN)])
    written = loop.source.generate(14, Stopwatch())
    own = written[:12]
    taken = loop.external.take(1, written, own)
    assert taken.wanted == 12 - 6, "one in two teaches"
    assert {group.key for group in taken.groups} == {GroupKey(ANNA, 7, 1), GroupKey(BEN, 7, 2)}
    assert taken.proven == {ANNA} and [each.own for each in taken.training] == [False, False]
    assert loop.intake.seen == [group.key for group in written]
    before = loop.accounts.tried()
    useful = tuple(0.5 * (group.author == BEN) for group in taken.groups)
    loop.external.credit(own, taken, UpdateStats(skipped=False, useful=useful), 9)
    keys = [*(GroupKey(b"", *group.key) for group in own), *(group.key for group in taken.groups)]
    assert lineage(loop.pool, 9) == sorted(keys)
    assert loop.accounts.tried()[BEN] == 0.5 and loop.accounts.tried()[ANNA] < before[ANNA]
    assert loop.counters.snapshot()["external_useless"] == 1


def test_what_is_admitted_counts_in_the_lead_once_whether_it_is_taken_or_not():
    loop = Loop(local=16, external=1)
    loop.prove(ANNA)
    loop.pool.add([pooled(number, (1.0, 1.0, 0.0), env="sums") for number in range(8)])
    assert loop.rounds.step().lead > 0.0, "two in three are right, and half of the node's own"
    for expected in (8.0, 8.0 * KEPT):
        seen = loop.lead.state_dict()["seen"]
        assert [n for author, *_, n, _ in seen if author == ANNA.hex()] == [expected]
        loop.rounds.step()
    assert Loop(local=3, external=1).rounds.step().lead is None, "nothing is from outside"


def too_long(number, author):
    return pooled(number, author=author, texts=["x" * 600, "y"])


def test_a_group_that_nothing_is_left_of_earns_its_author_nothing_and_is_not_trained_on():
    loop = Loop(local=3, external=1)
    loop.pool.add([too_long(1, ANNA)])
    outcome = loop.rounds.step()
    assert outcome.external == ()
    assert outcome.trained == len(outcome.own) == len(lineage(loop.pool, 1))
    assert loop.accounts.tried() == {ANNA: 0.0} and loop.pool.fresh() == []


def test_shares_are_of_what_is_left_of_a_choice():
    loop = Loop(local=4, external=4)
    loop.prove(ANNA, BEN)
    loop.pool.add([pooled(1), pooled(2), too_long(1, BEN), too_long(2, BEN)])
    written = loop.source.generate(8, Stopwatch())
    taken = loop.external.take(1, written, written[:4])
    assert [each.author for each in taken.groups] == [ANNA], "of five groups two are too many"
    assert len(taken.training) == 1 and loop.counters.snapshot()["external_over_share"] == 1


def test_shares_of_an_author_and_of_newcomers_are_those_asked_for(monkeypatch):
    asked = {"select": "uniform", "local": 4, "external": 4}
    asked |= {"author_share": 0.25, "unproven_share": 0.5}
    parts = Parts(monkeypatch, **{f"mixture__{key}": value for key, value in asked.items()})
    parts.pool.add(pooled(n, author=author) for author in (ANNA, BEN) for n in range(4))
    parts.run(1)
    assert len(parts.outcomes[0].external) == 4, "half of eight, though no author may have three"


def test_a_running_node_takes_all_it_has_room_for_from_a_peer_once_it_is_trusted(tmp_path):
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
    assert taken == [2, 8, 8, 2], "as it was where the file is damaged"


def test_peers_groups_of_an_env_in_which_luck_decides_are_marked_for_the_learner():
    for names in ([], [pooled(1).group.env]):
        loop = Loop(local=2, external=2, hidden=lambda names=names: {*names})
        loop.pool.add([pooled(1)])
        written = loop.source.generate(2, Stopwatch())
        (training,) = loop.external.take(1, written, written).training
        assert {done.hidden for done in training.completions} == {bool(names)}
        assert not any(done.hidden for each in written for done in each.training.completions)


def test_groups_of_a_blocked_author_are_not_trained_on_and_its_records_not_read():
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


def test_what_a_banned_peer_sent_before_is_not_used_even_if_it_is_trusted():
    loop = Loop(local=8, external=4, trusted=lambda: {ANNA})
    loop.prove(BEN)
    loop.pool.add([*(pooled(n) for n in range(30)), *(pooled(n, author=BEN) for n in range(30))])
    assert {each.author for each in loop.rounds.step().external} == {ANNA, BEN}
    loop.accounts.refuse(ANNA, "reward_mismatch", 40)
    assert {each.author for each in loop.rounds.step().external} == {BEN}
    loop.accounts.refuse(BEN, "reward_mismatch", 40)
    assert loop.rounds.step().external == () and loop.external.missing() == 4


def test_a_peer_that_is_banned_during_an_update_earns_nothing_by_it():
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
    """A group of two turns."""
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


def test_peers_groups_of_several_turns_do_not_stop_a_node_whose_template_takes_one():
    """One is only omitted; the other, which nothing foresaw, costs its group and not the node."""
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


def test_only_the_filters_that_are_asked_for_look_at_external_groups_of_own_size():
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
    assert intake.take(sent([trails, wrong])) is None, "sums are answered in a tag"
    counters = Counters()
    fits, long = [("1" * 59, 1.0), ("2" * 59, 0.0), ("3" * 59, 0.5)], ("1" * 60, 1.0)
    taken = intake_of(counters).take(sent(fits))
    assert [len(done.ids) for done in taken.completions] == [60, 60]
    assert counters.snapshot() == {"external_completions_cut": 1}
    assert intake_of(counters).take(sent([long, wrong])) is None
    limited = intake_of(counters, learner__max_completion_tokens=59)
    assert limited.take(sent([fits[0], wrong])) is None


def test_an_engine_whose_weights_are_still_the_policys_is_left_alone():
    loop = Loop(teacher=Nothing())
    loop.rounds.step()
    assert loop.calls == []


def test_what_went_wrong_in_an_update_is_counted(caplog):
    def counted(**told):
        loop = Loop()
        loop.learn(**told)
        loop.rounds.step()
        return loop.counters.snapshot()

    with caplog.at_level(logging.WARNING):
        found = counted(refused=1, unlikely=2, halved=3, engine_gap=0.06)
    names = ("steps_refused", "external_refused{reason=unlikely}", "micro_batch_halved")
    assert found == dict(zip((*names, "engine_gaps"), (1, 2, 3, 1), strict=True))
    assert "differ from the learner's by 0.06 nats" in caplog.text
    assert "explains 0.001" in caplog.text
    assert [counted(engine_gap=quiet) for quiet in (5e-4, None)] == [{}, {}]


def test_an_engine_is_compared_also_where_only_strangers_teach():
    loop = Loop(local=8, external=4, teacher=Nothing())
    loop.prove(ANNA)
    loop.pool.add([pooled(1), pooled(2)])
    outcome = loop.rounds.step()
    assert outcome.external and not outcome.update.skipped
    assert outcome.update.staleness == (), "no own token is trained on"
    assert outcome.update.engine_gap is not None
    assert loop.counters.snapshot()["engine_gaps"] == 1


@pytest.mark.parametrize(
    ("changes", "rests"),
    [
        ({}, False),
        ({"engine__sleep_mode": True}, True),
        ({"streaming": True, "schedule__oversample": 0.5}, True),
        ({"streaming": True}, False),
    ],
)
def test_the_engine_rests_where_it_shares_the_device_or_oversamples(monkeypatch, changes, rests):
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
def test_own_groups_are_weighed_by_age_only_where_they_can_be_old(monkeypatch, changes, decoupled):
    opened = Mock(side_effect=module.open_learner)
    monkeypatch.setattr(module, "open_learner", opened)
    asked = {"correction": "tis", "correction_options": {"cap": 3.0}}
    keys = {f"mixture__{key}": value for key, value in asked.items()}
    keys |= {"engine__temperature": 0.75, "mixture__filters": ["unlikely"]}
    Parts(monkeypatch, **keys, **changes)
    Parts(monkeypatch, mixture__filters=[])
    expected = {**asked, "decoupled": decoupled, "temperature": 0.75, "floor": True}
    first, second = (call.kwargs for call in opened.call_args_list)
    assert expected.items() <= first.items() and not second["floor"]


def test_what_is_shared_keeps_to_the_swarms_schedule_and_says_which_policy_wrote_it(monkeypatch):
    parts = Parts(monkeypatch, engine__temperature=0.75).run(2)
    origin = Origin(0, "random-0", parts.policy.encoding, 0.75, 40)
    assert parts.published == [
        ([], origin),
        ([0, 1, 2, 3], origin),
        ([4, 5], replace(origin, policy_step=1)),
    ]
    assert [len(outcome.own) for outcome in parts.outcomes] == [4, 4], "all are trained on"


def test_closing_keeps_what_is_begun_for_the_next_run(monkeypatch):
    # On threads a question could still be built when the last update ends: no answer was begun.
    monkeypatch.setattr(module, "ThreadPoolExecutor", lambda *arguments: AtOnce())
    parts = Parts(monkeypatch, streaming=True, schedule__max_staleness=1).run(2)
    parts.trainer.close()
    assert parts.calls[-2:] == ["poll", "close"], "halted, looked at once more and let go"
    assert "pause" in parts.calls
    assert any(group.kept for group in UnfinishedGroups(parts.journal).groups())


def test_an_overlapping_run_goes_on_at_the_age_that_it_had(monkeypatch):
    parts = Parts(monkeypatch, streaming=True, schedule__max_staleness=1)
    parts.policy.version = 5
    parts.run(6, done=5)
    versions = {group.version for group in UnfinishedGroups(parts.journal).groups()}
    assert versions and versions <= {5, 6}


def test_what_was_written_by_policies_after_the_checkpoint_is_written_anew(monkeypatch):
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
def test_peers_see_the_last_part_of_a_models_name_in_printable_letters(name, shown):
    assert public_name(name) == shown
