"""Bound on how far peer answers move the policy from the node's initial model."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.learner.batches import MicroBatch, TrainingCompletion, TrainingGroup, micro_batch
from node.learner.learner import Learner
from node.learner.peer_bound import HIDDEN_RATIO, REACH, SEVERAL, LocalGain, PeerBound, gained
from node.learner.reference import Reference
from node.policy.lora import Adapter
from node.policy.policy import Policy
from tests.node.learner.parts import CONFIG, PROMPT, cramped_policy, drawn, group, with_completions
from tests.support import lone_logprobs, random_policy

HABIT, END = 7, 96


def peer_group(*answers: tuple[int, ...]) -> TrainingGroup:
    """Build a peer group of alternating right and wrong answers."""
    done = (TrainingCompletion((*ids, END), (True,) * (len(ids) + 1)) for ids in answers)
    return TrainingGroup(PROMPT, tuple(done), (1.0, 0.0, 1.0, 0.0), local=False)


STYLED = peer_group((HABIT, 11, 12), (31, 13, 14), (HABIT, 15, 16), (32, 17, 18))
"""Right answers begin with the habit token; wrong ones do not."""


def reference_of(policy: Policy) -> Reference:
    return Reference(policy, copy.deepcopy(policy.model), temperature=1.0, tokens=4096)


def probability(policy: Policy, token: int = HABIT) -> float:
    return math.exp(float(lone_logprobs(policy, PROMPT, (token,))[0]))


def taught(ratio: float, *, trusted=False, lucky=False, rounds=60) -> tuple[float, float]:
    """Return the habit's probability before and after updates on styled answers."""
    policy, styled = random_policy(), STYLED.of_hidden_state() if lucky else STYLED
    reference, before = reference_of(policy), probability(policy)
    learner = Learner(policy, CONFIG, peer_ratio=ratio)
    for _ in range(rounds):
        learner.update(reference.read([replace(styled, trusted=trusted)]))
    return before, probability(policy)


def test_peer_bound_keeps_the_style_of_right_answers_rare():
    before, unbounded = taught(0.0)
    assert before < REACH and unbounded > 0.3
    _, bounded = taught(4.0)
    # One step may cross the bound.
    assert bounded < 1.5 * max(4 * before, REACH)


PHRASE = (HABIT, 21, 45, 62)
PHRASED = peer_group((*PHRASE, 11), (31, 13), (*PHRASE, 15), (32, 17))
"""Right answers begin with the phrase; wrong ones do not."""


def test_peer_bound_keeps_phrase_of_likely_tokens_rare():
    policy, gentle = random_policy(), CONFIG.model_copy(update={"lr": 2e-4})

    def sampled() -> float:
        return math.exp(float(lone_logprobs(policy, PROMPT, PHRASE).sum()))

    beginner = Learner(policy, gentle)
    while sampled() < 0.03:
        beginner.update([replace(PHRASED, local=True)])
    reference, before = reference_of(policy), sampled()
    learner = Learner(policy, gentle, peer_ratio=4.0, correction="better")
    for _ in range(30):
        learner.update(reference.read([PHRASED]))
    # One step may cross the bound.
    assert before < sampled() < 1.5 * SEVERAL * 4 * before


def test_hidden_state_answers_have_a_tighter_bound():
    before, after = taught(4.0, lucky=True)
    assert after < 1.5 * HIDDEN_RATIO * before < REACH


def test_local_gain_does_not_loosen_the_hidden_state_bound():
    most = math.log(HIDDEN_RATIO)
    bound = PeerBound.of(4.0, LocalGain(3.0, 1.0))
    for reference in (-1.0, -9.0):
        batch = peer_batch([(0.0, reference)], hidden=True)
        for over, expected in ((-0.01, False), (0.01, True)):
            prox = torch.full((2, 1), reference + most + over)
            assert bool(bound.reached(prox, batch)[0]) == expected


def test_bound_does_not_apply_to_trusted_authors():
    assert taught(4.0, trusted=True) == taught(0.0)


def test_local_answers_are_learned_without_a_bound():
    policy = random_policy()
    reference, learner = reference_of(policy), Learner(policy, CONFIG, peer_ratio=4.0)
    for _ in range(60):
        mixed = [replace(STYLED, local=True), group(2, (1.0, 0.0), local=False)]
        learner.update(reference.read(mixed))
    assert probability(policy) > 0.3


def peer_batch(logprobs: list[tuple[float, float]], *, hidden: bool = False) -> MicroBatch:
    """Build a batch of a better and a worse peer answer, with reference log-probs."""
    count = len(logprobs)
    reference = tuple(known for _, known in logprobs)
    done = TrainingCompletion((1,) * count, (True,) * count, reference=reference, hidden=hidden)
    group = TrainingGroup(PROMPT, (done, done), (1.0, 0.0), local=False)
    return micro_batch(Learner(random_policy(), CONFIG).rows([group]), 0, torch.device("cpu"))


LOGPROB = st.integers(-160, 0).map(lambda eighths: eighths / 8)  # multiples of 1/8 have exact sums


@given(
    logprobs=st.lists(st.tuples(LOGPROB, LOGPROB), min_size=1, max_size=40),
    ratio=st.floats(1, 100),
    gain=st.integers(0, 40).map(lambda eighths: eighths / 8),
    hidden=st.booleans(),
)
def test_token_reaches_bound_in_span_raised_above_ratio_and_reach(logprobs, ratio, gain, hidden):
    batch = peer_batch(logprobs, hidden=hidden)
    prox = torch.tensor([[p for p, _ in logprobs]] * 2)
    one = min(ratio, HIDDEN_RATIO) if hidden else ratio
    found = PeerBound.of(ratio, LocalGain(gain, 1.0)).reached(prox, batch)
    at_bound, above = {*found[0].nonzero().flatten().tolist()}, set[int]()
    for end in range(1, len(logprobs) + 1):
        raised = dict[int, float]()  # keyed by the first token
        for first in range(end):
            stretch = logprobs[first:end]
            if hidden or sum(p for p, _ in stretch) > math.log(REACH):
                raised[first] = sum(p - known - (not hidden) * gain for p, known in stretch)
        most = max(raised.values(), default=-math.inf)
        if most > math.log(SEVERAL * one):
            firsts = [first for first, by in raised.items() if by == most]
            assert any(at_bound >= {*range(first, end)} for first in firsts)
            above |= {*range(min(firsts), end)}
        elif raised.get(end - 1, -math.inf) > math.log(one):
            assert end - 1 in at_bound
            above.add(end - 1)
    assert at_bound <= above
    assert not found[1].any(), "a worse answer has no bound"
    assert not PeerBound().reached(prox, batch).any()
    assert not PeerBound.of(0.0, LocalGain()).reached(prox, batch).any()


def test_whole_passage_of_likely_tokens_reaches_bound_but_half_does_not():
    bound = PeerBound.of(3.0, LocalGain())
    for count, found in ((48, True), (24, False)):
        batch = peer_batch([(-1 / 32, -3 / 32)] * count)
        at_bound = bound.reached(torch.full((2, count), -1 / 32), batch)[0]
        assert at_bound.tolist() == [found] * count


def test_reference_scores_better_answers_of_local_and_untrusted_groups():
    policy = random_policy()
    groups = [
        group(1, (0.0, 1.0, 0.5, 0.9)),
        group(2, (1.0, 0.0, 1.0), local=False),
        replace(group(3, (1.0, 0.0), local=False), trusted=True),
        group(4, (1.0, 1.0), local=False),
    ]
    read = reference_of(policy).read(groups)
    known = [[done.reference is not None for done in each.completions] for each in read]
    assert known == [[False, True, False, True], [True, False, True], [False] * 2, [False] * 2]
    for before, after in zip(groups, read, strict=True):
        for done in after.completions:
            if done.reference is not None:
                expected = lone_logprobs(policy, after.prompt_ids, done.ids).tolist()
                assert done.reference == pytest.approx(expected, abs=1e-4)
        assert with_completions(after, reference=None) == before


def test_reference_skips_purely_local_batches():
    groups = [group(1, (0.0, 1.0)), drawn(2, 4, 8, local=True)]
    assert reference_of(random_policy()).read(groups) == groups


def references(groups: list[TrainingGroup]) -> list[tuple[float, ...] | None]:
    return [done.reference for each in groups for done in each.completions]


def test_reference_shrinks_micro_batches_when_out_of_memory(caplog):
    policy, groups = random_policy(), [drawn(n, 6, 30) for n in range(4)]
    expected = references(reference_of(policy).read(groups))
    found = references(reference_of(cramped_policy(200)).read(groups))
    assert "reduced from 4096 to" in caplog.text
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other)


def test_local_gain_is_a_decaying_mean_and_never_negative():
    gain = LocalGain()
    assert gain.mean == 0.0
    gain.add(6.0, 3.0)
    assert gain.mean == 2.0
    gain.add(0.0, 0.0)
    assert gain.mean == 2.0, "an update without local answers changes nothing"
    for _ in range(100):
        gain.add(-3.0, 3.0)
    assert gain.mean == 0.0


def test_learner_state_saves_and_restores_the_local_gain():
    policy = random_policy()
    reference, learner = reference_of(policy), Learner(policy, CONFIG, peer_ratio=4.0)
    local = [replace(STYLED, local=True), group(2, (1.0, 0.0), local=False)]
    for _ in range(10):
        learner.update(reference.read(local))
    total, tokens = learner.state_dict()["gain"]
    assert total / tokens > 0.5
    other = Learner(policy, CONFIG, peer_ratio=4.0)
    other.load_state_dict(learner.state_dict())
    assert other.state_dict()["gain"] == [total, tokens]


def test_gain_counts_only_better_local_answers():
    local, peers = replace(STYLED, local=True), drawn(3, 4, 6)
    policy = random_policy()
    read = reference_of(policy).read([local, peers])
    batch = micro_batch(Learner(policy, CONFIG).rows(read), 0, torch.device("cpu"))
    shifted = torch.where(batch.reference.isfinite(), batch.reference + 0.5, 0.0)
    total, tokens = gained(shifted, batch).tolist()
    assert (total, tokens) == (pytest.approx(0.5 * 8), 8)


def test_lora_peer_bound_uses_the_base_model():
    policy = random_policy()
    base = copy.deepcopy(policy.model)
    adapter = Adapter(policy.model, rank=4, alpha=8)
    adapted = Policy(policy.model, policy.tokenizer, policy.name, adapter)
    how = {"temperature": 1.0, "tokens": 4096}
    reference = Reference(adapted, adapted.model, **how, without=adapter.disabled)
    learner = Learner(adapted, CONFIG, peer_ratio=4.0)
    for _ in range(5):
        stats = learner.update(reference.read([replace(STYLED, local=True), STYLED]))
    assert not stats.skipped and stats.at_bound is not None
    plain = Reference(adapted, base, **how)
    pairs = zip(*(references(each.read([STYLED])) for each in (reference, plain)), strict=True)
    assert all(one == pytest.approx(other) for one, other in pairs)
    assert probability(adapted) != pytest.approx(probability(Policy(base, policy.tokenizer, "")))
