"""Every figure of a record is what the round says it is."""

from __future__ import annotations

import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from node.engines.engine import Sample
from node.learner.update_stats import UpdateStats
from node.monitor.record import RoundRecord
from node.monitor.sinks import JsonLinesFile
from node.rollout.groups import OwnGroup, OwnTask, own_group
from node.run import recorder
from node.run.outcome import Outcome
from node.run.recorder import Recorder, record_of
from node.trajectories.trajectory import Trajectory
from protocol.rollout import Finish, Tokens
from swarm.common.clock import VirtualClock
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.journal import MEMORY, Journal
from swarm.member import MemberStatus, PeerInfo
from swarm.pool import Pool
from swarm.verification import Verdict
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
    engine_gap=0.9,
    tokens_trained=11,
    largest_share=0.12,
    groups_bounded=13,
    lr=0.15,
    skipped=False,
)


def own(index: int, lengths: tuple[int, ...], rewards: tuple[float, ...]) -> OwnGroup:
    samples = [
        Sample(
            Tokens((1,) * n, (-0.5,) * n, (0,) * n),
            Finish.LENGTH if n == 9 else Finish.STOP,
            "x" * n,
        )
        for n in lengths
    ]
    task = OwnTask(TaskRef("sums", 0, 1), 7, index)
    written = list(map(Trajectory.once, samples))
    return own_group(task, [1, 2], written, Verdict(f"question {index}", rewards))


def outcome(update: UpdateStats = UPDATE, **changes: object) -> Outcome:
    done = Outcome(
        round=3,
        policy_step=2,
        own=(own(0, (9, 3), (1.0, 0.0)), own(1, (4, 4), (1.0, 1.0))),
        external=(
            pooled(1, (0.5, 0.0), author=ANNA),
            pooled(2, author=ANNA),
            pooled(3, author=BEN),
        ),
        update=update,
        evaluation=0.25,
        seconds={"generate": 4.0, "update": 2.0, "total": 8.0},
        external_wanted=6,
        trained=10,
        proven=frozenset({ANNA}),
        lead=-0.14,
    )
    return replace(done, **changes)


OURS, THEIRS = b"\x01" * 32, b"\x02" * 32
SWARMS = (OURS, THEIRS, None, OURS)


class Parts:
    def __init__(self) -> None:
        clock, self.counters = VirtualClock(START), Counters()
        self.pool = Pool(Journal(MEMORY, clock), 8, 60.0, clock, self.counters)
        peers = tuple(
            PeerInfo(f"12D3{n}", None, True, None, 0, 0.0, swarm) for n, swarm in enumerate(SWARMS)
        )
        self.status = MemberStatus("12D3", OURS, (), 0, peers, bytes_in=21, bytes_out=22)

    def record(self, done: Outcome) -> RoundRecord:
        return record_of(done, self.status, self.pool, self.counters, 23.5)


def test_a_record_tells_of_a_round_what_its_parts_tell() -> None:
    parts = Parts()
    parts.pool.add([pooled(8), pooled(9, (1.0, 1.0))])
    record = parts.record(outcome())
    assert (record.round, record.policy_step) == (3, 2)
    assert record.reward_own == pytest.approx(3 / 4)
    assert record.reward_external == pytest.approx((0.5 + 1.0 + 1.0) / 6)
    assert record.reward_eval == 0.25
    assert record.informative_own == 0.5
    assert (record.groups_own, record.groups_external, record.external_wanted) == (2, 3, 6)
    assert (record.author_share, record.unproven_share) == (0.2, 0.1)
    assert record.pool_groups == 1
    assert (record.tokens_generated, record.tokens_trained) == (20, 11)
    assert (record.tokens_per_s, record.mean_length) == (5.0, 5.0)
    assert record.truncated == 0.25
    assert record.lead == -0.14
    assert record.staleness == {"0": 5, "1": 0, "2": 7}
    assert (record.peers, record.strangers, record.bytes_in, record.bytes_out) == (2, 1, 21, 22)
    assert record.rss_mb == 23.5


def test_the_figures_of_an_update_stand_under_their_own_names() -> None:
    record = Parts().record(outcome())
    assert (record.loss, record.grad_norm, record.entropy) == (0.1, 0.2, 0.3)
    assert (record.clip_fraction, record.masked_fraction) == (0.4, 0.8)
    assert (record.ratio_low, record.ratio_median, record.ratio_high) == (0.5, 0.6, 0.7)
    assert (record.ratio_max, record.engine_gap) == (1.9, 0.9)
    assert (record.largest_share, record.groups_bounded) == (0.12, 13)
    assert record.learning_rate == 0.15


def test_an_update_that_made_no_step_has_no_figures() -> None:
    record = Parts().record(outcome(replace(UPDATE, skipped=True)))
    assert record.loss is None and record.learning_rate is None


def test_a_figure_that_is_no_number_is_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    record = Parts().record(outcome(replace(UPDATE, ratio_max=math.inf, engine_gap=math.nan)))
    path = tmp_path / "metrics.jsonl"
    with closing(JsonLinesFile(path, 1 << 20)) as file:
        file.write(record)
    written = json.loads(path.read_text())
    assert written["ratio_max"] is None and written["engine_gap"] is None
    assert written["loss"] == 0.1


def test_a_round_without_own_groups_is_recorded_too() -> None:
    record = Parts().record(outcome(own=(), external=(), trained=0, seconds={"total": 2.0}))
    assert (record.groups_own, record.tokens_generated) == (0, 0)
    assert (record.reward_own, record.reward_external, record.informative_own) == (None,) * 3
    assert (record.tokens_per_s, record.mean_length, record.truncated) == (None,) * 3
    assert (record.author_share, record.unproven_share) == (None, None)


def test_a_figure_of_an_update_that_was_not_measured_is_none_and_the_others_are_told() -> None:
    record = Parts().record(outcome(replace(UPDATE, engine_gap=None, ratio_max=None)))
    assert (record.engine_gap, record.ratio_max, record.loss) == (None, None, 0.1)


def test_rewards_of_zero_are_measured() -> None:
    record = Parts().record(outcome(own=(own(0, (3, 3), (0.0, 0.0)),)))
    assert (record.reward_own, record.informative_own, record.truncated) == (0.0, 0.0, 0.0)


def test_without_a_time_of_generation_speed_is_of_the_whole_round() -> None:
    assert Parts().record(outcome(seconds={"total": 8.0})).tokens_per_s == 20 / 8


def test_refusals_stand_apart_from_the_other_counters() -> None:
    parts = Parts()
    parts.counters.add("refused", 3, reason="replay")
    parts.counters.add("admitted", 4)
    record = parts.record(outcome())
    assert record.refused == {"replay": 3}
    assert record.counters == {"admitted": 4}


def test_every_sink_gets_every_record_and_memory_is_looked_at_now_and_then(monkeypatch) -> None:
    class Sink:
        def __init__(self) -> None:
            self.written: list[RoundRecord] = []

        def write(self, record: RoundRecord) -> None:
            self.written.append(record)

    looked = 0
    late = 100.0 + recorder.MEMORY_SECONDS
    times = iter([100.0, 100.0, late, late + 1.0, late + 1.0])

    def memory() -> float:
        nonlocal looked
        looked += 1
        return 10.0 * looked

    monkeypatch.setattr(recorder, "resident_mb", memory)
    monkeypatch.setattr(recorder.time, "monotonic", lambda: next(times))
    parts, sinks = Parts(), [Sink(), Sink()]
    reporter = Recorder(lambda: parts.status, parts.pool, parts.counters)
    for sink in sinks:
        reporter.add(sink)
    for _ in range(3):
        reporter.report(outcome())
    assert [[record.rss_mb for record in sink.written] for sink in sinks] == 2 * [
        [10.0, 10.0, 20.0]
    ]


def test_a_child_that_is_gone_counts_nothing_and_hides_no_other(monkeypatch) -> None:
    class Process:
        def __init__(self, pss: int | None = None, children: tuple[Process, ...] = ()) -> None:
            self._pss = pss
            self._children = children

        def children(self, recursive: bool) -> tuple[Process, ...]:
            return self._children

        def memory_full_info(self) -> Process:
            if self._pss is None:
                raise psutil.NoSuchProcess(1)
            self.pss, self.rss = self._pss, 10 * self._pss
            return self

    children = Process(), Process(2_000_000)
    monkeypatch.setattr(recorder.psutil, "Process", lambda: Process(1_000_000, children))
    assert recorder.resident_mb() == 3.0
