"""What admission remembers and what judging may cost, at the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.announcement import offer_of
from protocol.frame import open_frame
from swarm.admission import Admission
from swarm.groups import TaskRef
from swarm.reputation import PROVEN
from swarm.verification import Asked, Judged, Verdict
from tests.swarm.admission_parts import EPOCH_SECONDS, NOW, Gate, Peer, SumJudge
from tests.swarm.experience_parts import wait

GROUP_SECONDS = 2.0
"""Of a frame's 3.75, an author's 7.5 and all newcomers' 7.5 in an epoch of a minute."""


class Timed(SumJudge):
    """Says that each group took two seconds."""

    def judge(
        self, task: TaskRef, texts: Sequence[str], *, seconds: float | None = None
    ) -> Verdict:
        return replace(super().judge(task, texts), seconds=GROUP_SECONDS)


class Partly(SumJudge):
    """Judges two groups at once, and knows of the first alone what it took."""

    def judge_some(
        self, asked: Sequence[Asked], *, seconds: float | None = None
    ) -> Sequence[Judged]:
        first, second = [self.judge(each.task, each.texts) for each in asked[:2]]
        return replace(first, seconds=100.0), second


class Beyond(SumJudge):
    """Gives rewards that are none."""

    def __init__(self, reward: float) -> None:
        super().__init__()
        self.reward = reward

    def judge(
        self, task: TaskRef, texts: Sequence[str], *, seconds: float | None = None
    ) -> Verdict:
        return Verdict("?", (self.reward,) * len(texts))


def gate_of(judge: SumJudge) -> Gate:
    gate = Gate()
    gate.judge = judge
    gate.open(gate.journal)
    return gate


def frames(peer: Peer, count: int, groups: int) -> list[bytes]:
    return [
        peer.frame(*(peer.group(groups * n + i) for i in range(groups)), sequence=n + 1)
        for n in range(count)
    ]


def test_a_draw_is_known_for_as_long_as_it_would_be_taken_and_an_epoch_longer() -> None:
    gate = Gate()
    anna = Peer(gate)
    frame = anna.frame(anna.group(0))
    assert gate.admit(frame, anna.author) == [0]
    wait(gate.clock, gate.manifest.max_age_epochs * EPOCH_SECONDS)
    for later in (5, 6):
        assert gate.admit(anna.frame(anna.group(0, epoch=NOW + later)), anna.author) == [0]
        assert gate.admit(frame, anna.author) == []
        wait(gate.clock, EPOCH_SECONDS)
    assert gate.refused() == {"replay": 1, "stale_epoch": 1}
    # A clock that was an epoch ahead is put back.
    wait(gate.clock, -2 * EPOCH_SECONDS)
    assert gate.admit(frame, anna.author) == []
    assert gate.refused()["replay"] == 2


def test_a_frame_takes_no_more_time_than_it_may_and_every_group_of_the_rest_is_counted() -> None:
    gate = gate_of(Timed())
    anna = Peer(gate)
    (frame,) = frames(anna, 1, 5)
    assert gate.admit(frame, anna.author) == [0, 1]
    assert gate.refused() == {"over_budget": 3}
    assert gate.accounts.get(anna.author).seconds == 2 * GROUP_SECONDS


def test_time_counts_against_an_author_over_all_its_frames_until_the_epoch_is_over() -> None:
    gate = gate_of(Timed())
    anna = Peer(gate)
    gate.accounts.prove([(anna.author, 1.0)] * 8)
    assert [gate.admit(frame, anna.author) for frame in frames(anna, 3, 2)] == [[0, 1], [2, 3], []]
    wait(gate.clock, EPOCH_SECONDS)
    assert gate.admit(anna.frame(anna.group(0, epoch=NOW + 1), sequence=9), anna.author) == [0]


def test_an_author_of_just_enough_standing_is_no_newcomer(monkeypatch) -> None:
    gate = gate_of(Timed())
    anna, ben = Peer(gate), Peer(gate)
    monkeypatch.setattr(gate.accounts, "standing", lambda a: PROVEN * (a == anna.author))
    for frame in frames(ben, 2, 2):
        gate.admit(frame, ben.author)
    (frame,) = frames(anna, 1, 1)
    assert gate.admit(frame, anna.author) == [0], "newcomers' time is used up, and not hers"


def test_where_a_judge_does_not_know_what_all_groups_took_it_is_measured() -> None:
    gate = Gate()
    anna = Peer(gate)
    admission = Admission(
        gate.manifest,
        gate.swarm_id,
        Partly(),
        gate.accounts,
        gate.journal,
        gate.clock,
        gate.counters,
        threaded=False,
    )
    (frame,) = frames(anna, 1, 2)
    assert len(admission.examine(frame, anna.author)) == 2
    assert gate.accounts.get(anna.author).seconds == 0.0, "the clock stood still"


@pytest.mark.parametrize("reward", [-0.5, 1.5])
def test_a_verdict_beyond_the_bounds_of_rewards_is_nobodys_fault_and_taken_by_nobody(reward: float):
    gate = gate_of(Beyond(reward))
    anna = Peer(gate)
    (frame,) = frames(anna, 1, 1)
    assert gate.admit(frame, anna.author) == []
    assert (gate.refused(), gate.accounts.get(anna.author).strikes) == ({"bad_verdict": 1}, 0.0)


def test_a_frame_that_is_not_what_was_offered_is_refused_whole() -> None:
    gate = Gate()
    anna = Peer(gate)
    (frame,) = frames(anna, 1, 2)
    batch = open_frame(frame, gate.swarm_id, gate.manifest).batch
    offer = offer_of(frame, batch, gate.manifest)
    assert gate.admission.examine(frame, anna.author, replace(offer, groups=3)) == []
    assert gate.refused() == {"offer_mismatch": 1}
    assert len(gate.admission.examine(frame, anna.author, offer)) == 2
