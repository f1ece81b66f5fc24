import json
import math
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from experiments.virtual_clock import VirtualClock
from node.config.registry import ADVANTAGES
from node.engines.engine import Sample
from node.learner.update_stats import UpdateStats
from node.monitor.groups import MOST_ANSWERS
from node.monitor.record import RoundRecord
from node.monitor.sinks import JsonLinesFile
from node.rollout.groups import LocalTask, local_group
from node.run import recorder
from node.run.recorder import AT_ONCE, EMPTIED, IMPLAUSIBLE, NO_STEP, REFUSED_STEP
from node.run.update_groups import Outcome
from node.trajectories.trajectory import Trajectory
from protocol.rollout import Finish, Tokens
from swarm.admission import RefusedGroup
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.journal import MEMORY, Journal
from swarm.member import MemberStatus, PeerInfo
from swarm.pool import Pool
from swarm.verification import Scores
from tests.support import random_policy
from tests.swarm.experience_parts import ANNA, BEN, START, pooled

UPDATE = UpdateStats(
    loss=0.1,
    grad_norm=0.2,
    entropy=0.3,
    clip_fraction=0.4,
    ratio_max=1.9,
    ratio_low=0.5,
    ratio_median=0.6,
    ratio_high=0.7,
    masked_fraction=0.8,
    staleness=(5, 0, 7),
    logprob_mismatch=0.9,
    tokens_trained=11,
    largest_share=0.12,
    groups_bounded=13,
    lr=0.15,
    skipped=False,
)
POLICY = random_policy()


def written(index, lengths, rewards):
    def sample(n):
        tokens = Tokens((1,) * n, (-0.5,) * n, (0,) * n)
        return Sample(tokens, Finish.LENGTH if n == 9 else Finish.STOP, "x" * n)

    task = LocalTask(TaskRef("sums", 0, 1), 7, index)
    done = [Trajectory.once(sample(n)) for n in lengths]
    return local_group(task, [1, 2], done, Scores(f"question {index}", rewards))


def outcome(update=UPDATE, **changes):
    done = Outcome(
        round=3,
        policy_step=2,
        local=(written(0, (9, 3), (1.0, 0.0)), written(1, (4, 4), (1.0, 1.0))),
        external=(pooled(1, (0.5, 0.0)), pooled(2), pooled(3, author=BEN)),
        update=update,
        evaluation=0.25,
        seconds={"generate": 4.0, "update": 2.0, "total": 8.0},
        external_wanted=6,
        trained=10,
        proven=frozenset({ANNA}),
        peer_advantage=-0.14,
    )
    return replace(done, **changes)


class Parts:
    def __init__(self):
        clock, self.counters = VirtualClock(START), Counters()
        self.pool = Pool(Journal(MEMORY, clock), 8, 60.0, clock, self.counters)
        ours, theirs = b"\x01" * 32, b"\x02" * 32
        peers = tuple(
            PeerInfo(f"12D3{n}", None, True, None, 0, 0.0, swarm)
            for n, swarm in enumerate((ours, theirs, None, ours))
        )
        self.status = MemberStatus("12D3", ours, (), 0, peers, bytes_in=21, bytes_out=22)

    def record(self, update=UPDATE, **changes):
        told = self.status, self.pool, self.counters
        return recorder.record_of(outcome(update, **changes), *told, 23.5)


def test_record_combines_the_figures_of_a_round():
    parts = Parts()
    parts.pool.add([pooled(8), pooled(9, (1.0, 1.0))])
    parts.counters.add("refused", 3, reason="replay")
    parts.counters.add("admitted", 4)
    record = parts.record()
    assert (record.refused, record.counters) == ({"replay": 3}, {"admitted": 4})
    assert (record.round, record.policy_step) == (3, 2)
    rewards = (record.reward_local, record.reward_external, record.reward_eval)
    assert rewards == pytest.approx((3 / 4, (0.5 + 1.0 + 1.0) / 6, 0.25))
    assert (record.informative_local, record.truncated, record.peer_advantage) == (0.5, 0.25, -0.14)
    assert (record.groups_local, record.groups_external, record.external_wanted) == (2, 3, 6)
    assert (record.author_share, record.unproven_share, record.pool_groups) == (0.2, 0.1, 1)
    assert (record.tokens_generated, record.tokens_trained) == (20, 11)
    assert (record.tokens_per_s, record.mean_length) == (5.0, 5.0)
    assert record.staleness == {"0": 5, "1": 0, "2": 7}
    assert (record.peers, record.foreign_peers, record.bytes_in, record.bytes_out) == (2, 1, 21, 22)
    assert record.rss_mb == 23.5 and record.learning_rate == UPDATE.lr
    same = ("loss", "grad_norm", "entropy", "clip_fraction", "masked_fraction", "ratio_low")
    same += ("ratio_median", "ratio_high", "ratio_max", "logprob_mismatch", "largest_share")
    for name in (*same, "groups_bounded"):
        assert getattr(record, name) == getattr(UPDATE, name), name
    assert parts.record(seconds={"total": 8.0}).tokens_per_s == 20 / 8, "in the whole round"


def test_record_stores_missing_or_non_finite_values_as_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(JsonLinesFile(path, 1 << 20)) as file:
        file.write(Parts().record(replace(UPDATE, ratio_max=math.inf, logprob_mismatch=math.nan)))
    written = json.loads(path.read_text())
    assert (written["ratio_max"], written["logprob_mismatch"], written["loss"]) == (None, None, 0.1)
    record = Parts().record(replace(UPDATE, logprob_mismatch=None, ratio_max=None))
    assert (record.logprob_mismatch, record.ratio_max, record.loss) == (None, None, 0.1)
    odd = replace(record, peer_advantage=math.nan, reward_eval=-math.inf, levels={"s/0": math.nan})
    with closing(JsonLinesFile(tmp_path / "odd.jsonl", 1 << 20)) as file:
        file.write(odd)
    line = json.loads((tmp_path / "odd.jsonl").read_text(), parse_constant=pytest.fail)
    names = "peer_advantage", "reward_eval", "levels"
    assert [line[name] for name in names] == [None, None, {"s/0": None}]
    empty = replace(odd, peer_advantage=None, reward_eval=None, levels={})
    assert RoundRecord.from_dict(line) == empty
    skipped = Parts().record(replace(UPDATE, skipped=True))
    assert skipped.loss is None and skipped.learning_rate is None, "the update was skipped"


def test_record_handles_no_local_groups_and_zero_rewards():
    record = Parts().record(local=(), external=(), trained=0, seconds={"total": 2.0})
    assert (record.groups_local, record.tokens_generated) == (0, 0)
    assert (record.reward_local, record.reward_external, record.informative_local) == (None,) * 3
    assert (record.tokens_per_s, record.mean_length, record.truncated) == (None,) * 3
    assert (record.author_share, record.unproven_share) == (None, None)
    record = Parts().record(local=(written(0, (3, 3), (0.0, 0.0)),))
    assert (record.reward_local, record.informative_local, record.truncated) == (0.0, 0.0, 0.0)


def test_recorder_feeds_all_sinks_and_samples_memory_rarely(monkeypatch):
    due = 100.0 + recorder.MEMORY_SECONDS
    times, memory = iter([100.0, 100.0, due, due + 1.0, due + 1.0]), iter([10.0, 20.0])
    monkeypatch.setattr(recorder, "resident_mb", lambda: next(memory))
    monkeypatch.setattr(recorder.time, "monotonic", lambda: next(times))
    parts, sinks = Parts(), ([], [])
    reporter = recorder.Recorder(lambda: parts.status, parts.pool, parts.counters)
    for sink in sinks:
        reporter.add(SimpleNamespace(write=sink.append))
    for _ in range(3):
        reporter.report(outcome())
    assert [[record.rss_mb for record in sink] for sink in sinks] == 2 * [[10.0, 10.0, 20.0]]


def test_memory_total_ignores_an_exited_child(monkeypatch):
    class Process:
        def __init__(self, pss=None, children=()):
            self._pss, self._children = pss, children

        def children(self, recursive):
            return self._children

        def memory_full_info(self):
            if self._pss is None:
                raise psutil.NoSuchProcess(1)
            return SimpleNamespace(pss=self._pss, rss=10 * self._pss)

    children = Process(), Process(2_000_000)
    monkeypatch.setattr(psutil, "Process", lambda: Process(1_000_000, children))
    assert recorder.resident_mb() == 3.0


def local(rewards=(1.0, 0.0), text="4 2"):
    ids = (*POLICY.encode_completion(text, stopped=True),)
    tokens = Tokens(ids, (-0.25,) * len(ids), (7,) * len(ids))
    samples = [Sample(tokens, Finish.STOP, text) for _ in rewards]
    task = LocalTask(TaskRef("sums", 1, 1), 7, 3)
    return local_group(task, [1], list(map(Trajectory.once, samples)), Scores("6 * 7", rewards))


def shown(*refused, **changes):
    groups = recorder.ShownGroups(POLICY, ADVANTAGES.open("grpo", {}), lambda: refused)
    groups.add(outcome(**{"local": (), "external": (), **changes}))
    found = groups.take()
    assert groups.take() == [], "each round is shown once"
    return found


def test_local_group_shows_tokens_and_why_it_was_unused():
    (group,) = shown(local=(local(),))
    assert (group.origin, group.env, group.level, group.author) == ("own", "sums", 1, None)
    assert (group.prompt, group.in_update, group.reason) == ("6 * 7", True, None)
    right, wrong = group.completions
    assert (right.reward, wrong.reward) == (1.0, 0.0) and right.advantage == -wrong.advantage > 0
    assert "".join(right.tokens.text[:-1]) == right.text == "4 2"
    assert set(right.tokens.logprob) == {-0.25} and set(right.tokens.version) == {7}
    (group,) = shown(local=(local((0.0, 0.0, 0.0)),))
    assert group.reason is not None and group.reason.startswith("All 3 completions have the")
    assert {each.advantage for each in group.completions} == {0.0}
    for update, reason in ((UpdateStats(), NO_STEP), (UpdateStats(refused=1), REFUSED_STEP)):
        assert [each.reason for each in shown(local=(local(),), update=update)] == [reason]


def test_tokens_carry_the_entropies_of_the_update():
    same, right = local((1.0, 1.0)), local()
    found = tuple(0.5 + n for n in range(len(right.training.completions[0].ids)))
    update = replace(UPDATE, entropies=(((), ()), (found, ())))
    first, second = shown(local=(same, right), update=update)
    assert [list(each.tokens.entropy) for each in first.completions] == [[*found], []]
    assert all(not each.tokens.entropy for each in second.completions)
    (alone,) = shown(local=(right,), update=update)
    assert not any(each.tokens.entropy for each in alone.completions), "entropies of others"


def test_peer_groups_show_if_they_were_useful():
    groups = (pooled(1, author=ANNA), pooled(2, author=BEN), pooled(3, (1.0, 1.0), author=BEN))
    update, left = replace(UPDATE, useful=(0.5, 0.0, 0.0)), (pooled(4, author=BEN),)
    found = shown(external=groups, update=update, dropped=left)
    taught, implausible, same, dropped = found
    assert {each.origin for each in found} == {"external"}
    assert (taught.author, taught.reason) == (ANNA.hex(), None)
    assert implausible.reason == IMPLAUSIBLE and same.reason.startswith("All 2 completions")
    assert (dropped.in_update, dropped.reason) == (False, EMPTIED)
    assert taught.completions[0].tokens.text == (), "ids of another encoding have no text here"


def test_token_ids_that_contradict_the_text_are_not_shown():
    lie = local(text="4 2").group
    claimed = replace(lie.completions[0].segments[0], text="something else")
    told = replace(lie, completions=(replace(lie.completions[0], segments=(claimed,)),) * 2)
    (seen,) = shown(external=(replace(pooled(1), group=told, encoding=POLICY.encoding),))
    assert [(c.text, c.tokens.text) for c in seen.completions] == [("something else", ())] * 2


def test_refused_groups_show_the_reason():
    (seen,) = shown(RefusedGroup(BEN, pooled(1).group, "reward_mismatch", 5.0, "1 + 1", (0.0, 0.0)))
    assert (seen.origin, seen.author, seen.time) == ("refused", BEN.hex(), 5.0)
    assert seen.reason == "This node's verifier computes other rewards than its author claims."
    assert [each.reward for each in seen.completions] == [0.0, 0.0]


def test_a_large_round_shows_informative_groups_first():
    found = shown(local=(*(local((1.0, 1.0)) for _ in range(20)), local()))
    assert len(found) == AT_ONCE and found[0].reason is None
    wide = pooled(1, (*[0.0] * 20, 1.0), texts=tuple(map(str, range(21))))
    first, second = shown(external=(pooled(2, (0.5, 0.5)), wide))
    assert first.reason is None and second.reason
    rewards = [answer.reward for answer in first.completions]
    assert (len(rewards), min(rewards), max(rewards)) == (MOST_ANSWERS, 0.0, 1.0)
