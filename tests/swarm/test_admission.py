"""Admission of honest frames, and of frames that exceed this node's own limits."""

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.identity import Identity
from protocol.manifest import AllowList
from protocol.rollout import Group, Segment, Tokens, Writer, decode_group
from swarm import admission
from swarm.admission import KEPT, MOST_ASKED, MOST_UNPROVEN, Admission
from swarm.groups import TaskRef
from swarm.journal import Journal, backup_path, open_or_restore
from swarm.reputation import PROVEN
from swarm.verification import Scored, Scores, Submission, VerifierError
from tests.swarm.admission_parts import EPOCH_SECONDS, NOW, Gate, Peer, SumVerifier
from tests.swarm.experience_parts import START, wait


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def anna(gate) -> Peer:
    return Peer(gate)


def test_honest_frame_is_admitted_with_local_rewards_and_prompt(gate, anna):
    group = anna.group(3, ["wrong", "right", "wrong"])
    (pooled,) = asyncio.run(gate.admission.admit(anna.frame(group), anna.author))
    assert (pooled.key, pooled.group) == ((anna.author, NOW, 3), group)
    assert decode_group(pooled.encoded) == group
    assert pooled.prompt.endswith("+ 1")
    assert (pooled.policy_step, pooled.encoding, pooled.received) == (5, b"\x02" * 32, START)
    assert gate.accounts.get(anna.author).admitted == 1
    assert gate.counters.snapshot() == {"admitted": 1}


def test_admission_accepts_every_allowed_group_size(gate, anna):
    sizes = (2, 3, 8, 64)
    groups = [anna.group(i, ["right", *["wrong"] * (n - 1)]) for i, n in enumerate(sizes)]
    admitted = gate.admission.examine(anna.frame(*groups), anna.author)
    assert [len(p.group.rewards) for p in admitted] == list(sizes)


def test_local_reward_replaces_a_claim_that_differs_by_rounding(gate, anna):
    group = anna.group(0, ["right", "wrong"], claims=[0.9995, 0.0])
    (pooled,) = gate.admission.examine(anna.frame(group), anna.author)
    assert pooled.group.rewards == (1.0, 0.0)
    assert decode_group(pooled.encoded).rewards == (0.9995, 0.0)


async def test_verification_does_not_block_the_event_loop(gate, anna):
    release = threading.Event()
    verifier = gate.verifier.verify

    def slow(*arguments, **bounds):
        assert release.wait(10.0)
        return verifier(*arguments, **bounds)

    gate.verifier.verify = slow
    frame = anna.frame(anna.group(0))
    admitting = asyncio.create_task(gate.admission.admit(frame, anna.author))
    await asyncio.sleep(0)
    release.set()
    assert len(await admitting) == 1


def test_group_without_a_result_does_not_block_later_frames(gate, anna):
    refusals = "unknown_env", "evaluates_text", "timeout", "worker_lost", "cpu_limit"
    rewards = ("nan", "-0.5", "1.5")
    texts = [f"refuse:{reason}" for reason in refusals] + [f"rewards:{each}" for each in rewards]
    texts.append("bug")
    groups = [anna.group(i, ["right", text]) for i, text in enumerate(texts)]
    admitted = [
        gate.admit(anna.frame(group, sequence=n), anna.author) for n, group in enumerate(groups, 1)
    ]
    assert not any(admitted)
    assert gate.admit(anna.frame(anna.group(9), sequence=10), anna.author) == [9]
    counts = dict.fromkeys((*refusals, "verifier_failed"), 1)
    assert gate.refused() == {**counts, "bad_result": len(rewards)}
    # A group that used its whole CPU limit counts half a penalty.
    assert gate.accounts.get(anna.author).penalties == 0.5


class Quick(SumVerifier):
    """Verifies all requests in a call up to the first refusal; 0.5 s for each."""

    def verify_some(self, asked: Sequence[Submission], *, seconds=None) -> Sequence[Scored]:
        found: list[Scored] = []
        for number in range(len(asked)):
            (each,) = super().verify_some(asked[number:])
            if isinstance(each, VerifierError):
                return [*found, VerifierError(each.reason, seconds=0.5)]
            found.append(replace(each, seconds=0.5))
        return found


def spread(peer: Peer, count: int) -> list[Group]:
    """Make groups over the latest time slots, 32 per slot."""
    return [peer.group(number % 32, epoch=NOW - number // 32) for number in range(count)]


@pytest.mark.parametrize("proven", [False, True])
def test_only_proven_authors_get_whole_frames_verified(gate, anna, proven):
    if proven:
        gate.accounts.prove([(anna.author, 1.0)] * 8)
    groups = spread(anna, MOST_UNPROVEN + 32)
    admitted = gate.admission.examine(anna.frame(*groups), anna.author)
    assert len(admitted) == (len(groups) if proven else MOST_UNPROVEN)
    assert gate.refused() == ({} if proven else {"over_budget": 32})
    assert gate.accounts.get(anna.author).penalties == 0.0


def test_free_groups_are_verified_in_bounded_parts(anna):
    """The cost of each call is proportional to the groups passed in it."""
    asked = list[int]()

    class Refusing(SumVerifier):
        def verify_some(self, groups: Sequence[Submission], *, seconds=None) -> Sequence[Scored]:
            asked.append(len(groups))
            return [VerifierError("unknown_env", seconds=0.0)]

    gate = Gate(verifier=Refusing())
    gate.admit(anna.frame(*spread(anna, MOST_UNPROVEN)), anna.author)
    assert max(asked) == MOST_ASKED and len(asked) == MOST_UNPROVEN
    assert gate.accounts.get(anna.author).seconds > 0.0


def test_batched_groups_get_separate_results_and_one_total_charge(anna):
    gate = Gate(verifier=Quick())
    texts = ["right", "refuse:unknown_env", "wrong", "refuse:timeout", "right"]
    groups = [anna.group(i, ["right", text], claims=[1.0, 1.0]) for i, text in enumerate(texts)]
    assert gate.admit(anna.frame(*groups), anna.author) == [0, 4]
    assert gate.refused() == {"unknown_env": 1, "reward_mismatch": 1, "timeout": 1}
    assert gate.accounts.get(anna.author).seconds == 2.5


def test_frame_is_abandoned_after_two_verifier_failures(anna):
    gate = Gate(verifier=Quick())
    texts = ["right", "refuse:timeout", "refuse:crashed", "right", "right"]
    groups = [anna.group(i, ["right", text]) for i, text in enumerate(texts)]
    assert gate.admit(anna.frame(*groups), anna.author) == [0]
    assert gate.refused() == {"timeout": 1, "crashed": 1, "abandoned": 2}


def test_old_and_future_time_slots_are_refused_without_a_penalty(gate, anna):
    groups = [anna.group(0, epoch=NOW + ahead) for ahead in (-1000, -6, -5, -4, 0, 1, 2)]
    admitted = gate.admission.examine(anna.frame(*groups), anna.author)
    assert [p.group.epoch - NOW for p in admitted] == [-5, -4, 0, 1]
    assert gate.refused() == {"stale_epoch": 2, "epoch_ahead": 1}
    assert gate.accounts.get(anna.author).penalties == 0.0


def test_repeated_frame_is_admitted_once_without_a_penalty(anna, path):
    gate = Gate(path)
    frame = anna.frame(anna.group(0), anna.group(1))
    assert gate.admit(frame, anna.author) == [0, 1]
    assert gate.admit(frame, anna.author) == []
    assert (gate.refused(), gate.accounts.get(anna.author).penalties) == ({"replay": 2}, 0.0)
    assert gate.verifier.calls == 2
    gate.journal.close()
    gate.open(Journal(path, gate.clock))
    assert gate.admit(frame, anna.author) == [], "a restart keeps the seen groups"


def test_a_sample_with_misplaced_segments_is_penalized_once_and_not_replaced(gate, anna):
    group = anna.group(0)
    first, *others = group.completions
    changed = replace(first, segments=(Segment(Writer.ENVIRONMENT, "Right."), *first.segments))
    bad = replace(group, completions=(changed, *others))
    for each in (bad, bad, group):
        assert gate.admit(anna.frame(each), anna.author) == []
    assert gate.refused() == {"unexpected_segments": 1, "replay": 1, "equivocation": 1}
    assert gate.accounts.get(anna.author).penalties == 2.0
    assert gate.verifier.calls == 0


def test_clock_jump_ahead_and_back_readmits_no_frame(gate, anna):
    frame = anna.frame(anna.group(0), anna.group(1))
    assert gate.admit(frame, anna.author) == [0, 1]
    for jump in (1000 * EPOCH_SECONDS, -1000 * EPOCH_SECONDS):
        wait(gate.clock, jump)
        gate.admit(anna.frame(anna.group(2, epoch=NOW - 1000)), anna.author)
    assert gate.admit(frame, anna.author) == []
    assert gate.refused() == {"stale_epoch": 2, "replay": 2}
    assert gate.admit(anna.frame(anna.group(3)), anna.author) == [3], "other groups are admitted"


def test_seen_sample_records_stay_bounded(gate, anna, monkeypatch):
    monkeypatch.setattr(admission, "LEAST_SEEN", 0)
    for epoch in range(NOW, NOW + 30):
        assert gate.admit(anna.frame(anna.group(0, epoch=epoch)), anna.author) == [0]
        wait(gate.clock, EPOCH_SECONDS)
    assert gate.journal.read("SELECT count(*) FROM seen")[0][0] <= 7


def test_restore_refuses_time_slots_that_may_have_been_used(anna, path):
    gate = Gate(path)
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


def test_restore_after_a_clock_error_one_year_ahead_admits_new_frames(anna, path):
    gate = Gate(path)
    gate.journal.backup()
    gate.journal.close()
    path.unlink()
    year_ahead = gate.clock.time() + 365 * 86_400
    os.utime(backup_path(path), (year_ahead, year_ahead))
    gate.open(open_or_restore(path, gate.clock)[0])
    assert gate.admit(anna.frame(anna.group(0)), anna.author) == [0]


def test_author_not_on_the_allow_list_is_refused_without_penalty():
    identity = Identity.generate()
    gate = Gate(admission=AllowList((identity.author,)))
    guest, unlisted = Peer(gate, identity), Peer(gate)
    assert gate.admit(guest.frame(guest.group(0)), guest.author) == [0]
    assert gate.admit(unlisted.frame(unlisted.group(0)), unlisted.author) == []
    assert gate.refused() == {"not_admitted": 1}
    assert gate.accounts.get(unlisted.author).penalties == 0.0


GROUP_SECONDS = 2.0
"""Limits per 60 s slot: 3.75 s a frame, 7.5 s an author, 7.5 s all unproven ones."""


class Timed(SumVerifier):
    def verify(self, task: TaskRef, texts: Sequence[str], *, seconds=None) -> Scores:
        return replace(super().verify(task, texts), seconds=GROUP_SECONDS)


class Partly(SumVerifier):
    """Verifies two groups in a call, and reports the time of the first only."""

    def verify_some(self, asked: Sequence[Submission], *, seconds=None) -> Sequence[Scored]:
        first, second = [self.verify(each.task, each.texts) for each in asked[:2]]
        return replace(first, seconds=100.0), second


class Slow(SumVerifier):
    """Reports that its first text exceeded the time limit."""

    def verify(self, task: TaskRef, texts: Sequence[str], *, seconds=None) -> Scores:
        found = super().verify(task, texts)
        return replace(found, rewards=(0.0, *found.rewards[1:]), over=(0,))


def test_local_timeout_is_not_a_mismatch_and_hides_no_false_claim(anna):
    gate = Gate(verifier=Slow())
    claims = [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]
    groups = [anna.group(i, claims=claim) for i, claim in enumerate(claims)]
    assert gate.admit(anna.frame(*groups), anna.author) == [1]
    assert gate.refused() == {"cpu_limit": 1, "reward_mismatch": 1}


def frames(peer: Peer, count: int, groups: int) -> list[bytes]:
    return [
        peer.frame(*(peer.group(groups * n + i) for i in range(groups)), sequence=n + 1)
        for n in range(count)
    ]


def test_sample_is_remembered_one_slot_longer_than_it_is_admissible(gate, anna) -> None:
    frame = anna.frame(anna.group(0))
    assert gate.admit(frame, anna.author) == [0]
    wait(gate.clock, gate.manifest.max_age_epochs * EPOCH_SECONDS)
    for later in (5, 6):
        assert gate.admit(anna.frame(anna.group(0, epoch=NOW + later)), anna.author) == [0]
        assert gate.admit(frame, anna.author) == []
        wait(gate.clock, EPOCH_SECONDS)
    assert gate.refused() == {"replay": 1, "stale_epoch": 1}
    # A clock that was one time slot ahead is set back.
    wait(gate.clock, -2 * EPOCH_SECONDS)
    assert gate.admit(frame, anna.author) == []
    assert gate.refused()["replay"] == 2


def test_frame_stays_within_its_time_budget_and_counts_skipped_groups(anna):
    gate = Gate(verifier=Timed())
    (frame,) = frames(anna, 1, 5)
    assert gate.admit(frame, anna.author) == [0, 1]
    assert gate.refused() == {"over_budget": 3}
    assert gate.accounts.get(anna.author).seconds == 2 * GROUP_SECONDS


def test_author_time_budget_spans_frames_and_resets_each_time_slot(anna) -> None:
    gate = Gate(verifier=Timed())
    gate.accounts.prove([(anna.author, 1.0)] * 8)
    assert [gate.admit(frame, anna.author) for frame in frames(anna, 3, 2)] == [[0, 1], [2, 3], []]
    wait(gate.clock, EPOCH_SECONDS)
    assert gate.admit(anna.frame(anna.group(0, epoch=NOW + 1), sequence=9), anna.author) == [0]


def test_author_at_the_reputation_threshold_is_proven(monkeypatch) -> None:
    gate = Gate(verifier=Timed())
    anna, ben = Peer(gate), Peer(gate)
    monkeypatch.setattr(gate.accounts, "reputation", lambda a: PROVEN * (a == anna.author))
    for frame in frames(ben, 2, 2):
        gate.admit(frame, ben.author)
    (frame,) = frames(anna, 1, 1)
    assert gate.admit(frame, anna.author) == [0], "unproven authors' time is used up, anna's is not"


def test_admission_measures_time_that_the_verifier_does_not_report(gate, anna):
    parts = gate.manifest, gate.swarm_id, Partly(), gate.accounts, gate.journal, gate.clock
    admission = Admission(*parts, gate.counters, threaded=False)
    (frame,) = frames(anna, 1, 2)
    assert len(admission.examine(frame, anna.author)) == 2
    assert gate.accounts.get(anna.author).seconds == 0.0, "the virtual clock did not advance"


def test_refused_group_is_kept_with_author_reason_and_rewards(gate: Gate) -> None:
    larry = Peer(gate)
    groups = [
        larry.group(0),
        larry.group(1, claims=[1.0, 1.0]),
        larry.group(2, ["refuse:timeout", "wrong"]),
        larry.group(3, epoch=NOW + 9),
    ]
    assert gate.admit(larry.frame(*groups), larry.author) == [0]
    late, lie, hung = gate.shown.take()
    assert {each.author for each in (late, lie, hung)} == {larry.author}
    assert (late.reason, late.group.index, late.prompt) == ("epoch_ahead", 3, "")
    assert (lie.reason, lie.rewards) == ("reward_mismatch", (1.0, 0.0))
    assert lie.prompt.endswith("+ 1") and lie.group.rewards == (1.0, 1.0)
    assert (hung.reason, hung.rewards) == ("timeout", ())
    assert gate.shown.take() == [], "each refused group is returned once"


def test_refused_groups_are_kept_without_their_tokens(gate: Gate) -> None:
    larry = Peer(gate)
    group = larry.group(0, epoch=NOW + 9)
    tokens = Tokens((1, 2), (-1.0, -1.0), (0, 0))
    segments = (replace(group.completions[0].segments[0], tokens=tokens),)
    first = replace(group.completions[0], segments=segments)
    sent = replace(group, completions=(first, *group.completions[1:]))
    assert gate.admit(larry.frame(sent), larry.author) == []
    assert [each.group for each in gate.shown.take()] == [group]


def test_only_the_latest_refused_groups_are_kept(gate: Gate) -> None:
    flo = Peer(gate)
    for number in range(4):
        groups = [flo.group(n, epoch=NOW + 9 + number) for n in range(32)]
        gate.admit(flo.frame(*groups, sequence=number + 1), flo.author)
    assert gate.refused() == {"epoch_ahead": 128}
    assert [each.group.index for each in gate.shown.take()] == list(range(32 - KEPT, 32))
