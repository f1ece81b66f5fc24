"""Admission of honest frames, and of those that only this node's own limits keep out."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.identity import Identity
from protocol.manifest import AllowList
from protocol.rollout import decode_group
from swarm.journal import Journal, backup_path, open_or_restore
from swarm.verification import Asked, Judged, JudgeRefused
from tests.swarm.admission_parts import EPOCH_SECONDS, NOW, Gate, Peer, SumJudge
from tests.swarm.experience_parts import START, wait


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def anna(gate) -> Peer:
    return Peer(gate)


def test_an_honest_frame_is_admitted_with_rewards_and_prompt_of_our_own(gate, anna):
    group = anna.group(3, ["wrong", "right", "wrong"])
    (pooled,) = asyncio.run(gate.admission.admit(anna.frame(group), anna.author))
    assert (pooled.key, pooled.group) == ((anna.author, NOW, 3), group)
    assert decode_group(pooled.told) == group
    assert pooled.prompt.endswith("+ 1")
    assert (pooled.policy_step, pooled.encoding, pooled.received) == (5, b"\x02" * 32, START)
    assert gate.accounts.get(anna.author).admitted == 1
    assert gate.counters.snapshot() == {"admitted": 1}


def test_any_group_size_the_manifest_allows_is_welcome(gate, anna):
    sizes = (2, 3, 8, 64)
    groups = [anna.group(i, ["right", *["wrong"] * (n - 1)]) for i, n in enumerate(sizes)]
    admitted = gate.admission.examine(anna.frame(*groups), anna.author)
    assert [len(p.group.rewards) for p in admitted] == list(sizes)


def test_our_reward_stands_in_the_group_when_the_claim_differs_by_rounding(gate, anna):
    group = anna.group(0, ["right", "wrong"], claims=[0.9995, 0.0])
    (pooled,) = gate.admission.examine(anna.frame(group), anna.author)
    assert pooled.group.rewards == (1.0, 0.0)
    assert decode_group(pooled.told).rewards == (0.9995, 0.0)


def test_the_event_loop_goes_on_while_a_frame_is_judged(gate, anna):
    free = threading.Event()
    judge = gate.judge.judge

    def slow(*arguments, **bounds):
        assert free.wait(10.0)
        return judge(*arguments, **bounds)

    gate.judge.judge = slow

    async def admit_and_set_free() -> list:
        admitting = asyncio.create_task(
            gate.admission.admit(anna.frame(anna.group(0)), anna.author)
        )
        await asyncio.sleep(0)
        free.set()
        return await admitting

    assert len(asyncio.run(admit_and_set_free())) == 1


def test_one_group_without_a_verdict_does_not_cost_the_others(gate, anna):
    texts = ["refuse:unknown_env", "refuse:evaluates_text", "refuse:timeout", "bug", "nonsense"]
    groups = [anna.group(i, ["right", text]) for i, text in enumerate(texts)]
    assert gate.admit(anna.frame(*groups, anna.group(9)), anna.author) == [9]
    assert gate.refused() == {
        "unknown_env": 1,
        "evaluates_text": 1,
        "timeout": 1,
        "judge_failed": 1,
        "bad_verdict": 1,
    }
    # One that ran out of time is half a strike, and nine more may follow it within the hour.
    assert gate.accounts.get(anna.author).strikes == 0.5


class Quick(SumJudge):
    """Judges all that it is asked at once, to the first that it refuses; half a second each."""

    def judge_some(
        self, asked: Sequence[Asked], *, seconds: float | None = None
    ) -> Sequence[Judged]:
        found: list[Judged] = []
        for number in range(len(asked)):
            (each,) = super().judge_some(asked[number:])
            if isinstance(each, JudgeRefused):
                return [*found, JudgeRefused(each.reason, seconds=0.5)]
            found.append(replace(each, seconds=0.5))
        return found


def test_groups_judged_at_once_are_told_apart_and_charged_for_together(gate, anna):
    gate.judge = Quick()
    gate.open(gate.journal)
    texts = ["right", "refuse:unknown_env", "wrong", "refuse:timeout", "right"]
    groups = [anna.group(i, ["right", text], claims=[1.0, 1.0]) for i, text in enumerate(texts)]
    assert gate.admit(anna.frame(*groups), anna.author) == [0, 4]
    assert gate.refused() == {"unknown_env": 1, "reward_mismatch": 1, "timeout": 1}
    assert gate.accounts.get(anna.author).seconds == 2.5


def test_a_frame_that_hangs_a_quick_judge_twice_is_abandoned_all_the_same(gate, anna):
    gate.judge = Quick()
    gate.open(gate.journal)
    texts = ["right", "refuse:timeout", "refuse:crashed", "right", "right"]
    groups = [anna.group(i, ["right", text]) for i, text in enumerate(texts)]
    assert gate.admit(anna.frame(*groups), anna.author) == [0]
    assert gate.refused() == {"timeout": 1, "crashed": 1, "abandoned": 2}


def test_epochs_a_little_ahead_are_taken_and_further_ones_are_not(gate, anna):
    groups = [anna.group(0, epoch=NOW + ahead) for ahead in (0, 1, 2)]
    admitted = gate.admission.examine(anna.frame(*groups), anna.author)
    assert [p.group.epoch - NOW for p in admitted] == [0, 1]
    assert gate.refused() == {"epoch_ahead": 1}


def test_old_epochs_are_refused_without_a_strike(gate, anna):
    groups = [anna.group(0, epoch=NOW - age) for age in (4, 5, 6, 1000)]
    admitted = gate.admission.examine(anna.frame(*groups), anna.author)
    assert [NOW - p.group.epoch for p in admitted] == [4, 5]
    assert (gate.refused(), gate.accounts.get(anna.author).strikes) == ({"stale_epoch": 2}, 0.0)


def test_a_frame_met_twice_is_admitted_once_and_nobody_is_blamed(gate, anna):
    frame = anna.frame(anna.group(0), anna.group(1))
    assert gate.admit(frame, anna.author) == [0, 1]
    assert gate.admit(frame, anna.author) == []
    assert (gate.refused(), gate.accounts.get(anna.author).strikes) == ({"replay": 2}, 0.0)
    assert gate.judge.calls == 2


def test_a_draw_met_before_a_restart_is_still_known(tmp_path):
    gate = Gate(tmp_path / "journal.sqlite")
    anna = Peer(gate)
    frame = anna.frame(anna.group(0))
    assert gate.admit(frame, anna.author) == [0]
    gate.journal.close()
    gate.open(Journal(tmp_path / "journal.sqlite", gate.clock))
    assert gate.admit(frame, anna.author) == []


def test_what_is_remembered_of_draws_does_not_grow_for_ever(gate, anna):
    for epoch in range(NOW, NOW + 30):
        assert gate.admit(anna.frame(anna.group(0, epoch=epoch)), anna.author) == [0]
        wait(gate.clock, EPOCH_SECONDS)
    assert gate.journal.read("SELECT count(*) FROM seen")[0][0] <= 7


def test_after_a_restore_epochs_that_may_have_been_used_are_left_out(tmp_path):
    path = tmp_path / "journal.sqlite"
    gate = Gate(path)
    anna = Peer(gate)
    gate.journal.backup()
    frame = anna.frame(anna.group(0), anna.group(0, epoch=NOW + 1))
    assert gate.admit(frame, anna.author) == [0, 0]
    gate.journal.close()
    path.unlink()
    os.utime(backup_path(path), (gate.clock.time(), gate.clock.time()))
    gate.open(open_or_restore(path, gate.clock)[0])
    assert gate.admit(frame, anna.author) == []
    assert gate.refused() == {"before_restore": 2}
    wait(gate.clock, 2 * EPOCH_SECONDS)
    assert gate.admit(anna.frame(anna.group(0, epoch=NOW + 2)), anna.author) == [0]


def test_authors_off_the_allow_list_are_left_out_without_a_strike():
    identity = Identity.generate()
    gate = Gate(rule=AllowList((identity.author,)))
    guest, stranger = Peer(gate, identity), Peer(gate)
    assert gate.admit(guest.frame(guest.group(0)), guest.author) == [0]
    assert gate.admit(stranger.frame(stranger.group(0)), stranger.author) == []
    assert gate.refused() == {"not_admitted": 1}
    assert gate.accounts.get(stranger.author).strikes == 0.0
