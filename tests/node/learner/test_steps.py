import math
from dataclasses import asdict, fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.learner.batches import Row, TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.micro_batching import UpdateShare
from node.learner.steps import MOST_COMPLETIONS, newest_rows, steps_of
from node.learner.update_stats import UpdateStats
from tests.node.learner import parts
from tests.node.learner.parts import CONFIG, FAT, MIXED, behaving, dated, group, policy_at, weights
from tests.support import changed, lone_logprobs, random_policy

IN_FOURS = changed(CONFIG, groups_per_step=4)
GROUPS = [group(n, (0.0, 1.0, 0.5), local=n < 3) for n in range(8)]
PEERS = parts.external([group(4, (0.0, 1.0)), group(5, (1.0, 1.0))])
VERSION = 3
EARLIER = dated(MIXED, VERSION - 1)
PEER_MIXED = parts.external(MIXED)


def row(number):
    return Row((1,), (TrainingCompletion((2, 3), (True, True)),), (1.0,), True, 0.125, number)


@given(rows=st.integers(1, 40), idle=st.integers(0, 4), least=st.integers(0, 12))
def test_each_row_is_in_one_step_and_each_step_has_the_minimum_rows(rows, idle, least):
    steps = steps_of([row(n) for n in range(rows)], rows + idle, least)
    assert sorted(r.group for step in steps for r in step.rows) == list(range(rows))
    assert len(steps) == (max(1, rows // least) if least else 1)
    sizes = [len(step.rows) for step in steps]
    assert len(steps) == 1 or least <= min(sizes) <= max(sizes) <= min(sizes) + 1
    assert math.fsum(step.weight for step in steps) == pytest.approx(1.0)
    assert math.fsum(step.groups for step in steps) == pytest.approx(rows + idle)
    steps = steps_of([row(n) for n in range(rows)], rows, least)
    counted = {r.group: r.share / len(steps) for step in steps for r in step.rows}
    assert counted == pytest.approx(dict.fromkeys(range(rows), 0.125)), "the mean is the update"


def test_update_of_eight_groups_equals_two_of_four():
    in_one, in_two = random_policy(), random_policy()
    stats = Learner(in_one, IN_FOURS).update(GROUPS)
    apart = Learner(in_two, CONFIG)
    halves = [apart.update(GROUPS[0::2]), apart.update(GROUPS[1::2])]
    torch.testing.assert_close(weights(in_one), weights(in_two))
    assert in_one.version == in_two.version == 2
    assert stats.tokens_trained == sum(half.tokens_trained for half in halves)
    assert stats.loss == pytest.approx(sum(half.loss for half in halves) / 2)
    assert stats.grad_norm == pytest.approx(sum(half.grad_norm for half in halves) / 2)
    useful = dict(zip([4, 6, 3, 5, 7], halves[0].useful + halves[1].useful, strict=True))
    assert stats.useful == pytest.approx([useful[n] for n in (3, 4, 5, 6, 7)])


@pytest.mark.parametrize(("informative", "least", "steps"), [(7, 4, 1), (8, 4, 2), (8, 0, 1)])
def test_epoch_has_one_step_per_full_set_of_informative_groups(informative, least, steps):
    idle = [group(20 + n, (1.0, 1.0)) for n in range(5)]
    for epochs in (1, 3):
        policy = random_policy()
        config = changed(CONFIG, groups_per_step=least, epochs=epochs, lr=1e-5)
        stats = Learner(policy, config).update([*idle, *GROUPS[:informative]])
        assert policy.version == epochs * steps and (stats.skipped, stats.refused) == (False, 0)


@pytest.mark.parametrize("intruder", [FAT, parts.HOT], ids=["fat", "hot"])
def test_peer_group_has_at_most_twice_its_share_in_a_stepped_update(intruder):
    stats = Learner(random_policy(), IN_FOURS).update([*parts.HONEST, intruder])
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6


def test_staleness_grows_for_local_tokens_of_later_steps():
    groups = dated(behaving([group(n, (0.0, 1.0, 0.5)) for n in range(8)], 0.0), 5)
    stats = Learner(policy_at(5), IN_FOURS).update(groups)
    read_in = [sum(len(c.ids) for g in groups[part::2] for c in g.completions) for part in (0, 1)]
    assert list(stats.staleness) == read_in
    assert stats.logprob_mismatch == pytest.approx(0.0, abs=1e-5), "only the first step counts"


def with_norms(learner, *values):
    """Make the learner measure these gradient norms."""
    left = iter(values)
    learner.optimizer.clip = lambda: torch.tensor(next(left))
    return learner


@pytest.mark.parametrize("norm", [0.0, math.inf, math.nan])
def test_learner_skips_step_with_zero_or_nonfinite_gradient(norm):
    policy = random_policy()
    before = weights(policy)
    stats = with_norms(Learner(policy, CONFIG), norm).update(MIXED)
    assert (stats.skipped, stats.refused, policy.version) == (True, norm != 0.0, 0)
    assert torch.equal(weights(policy), before) and math.isfinite(stats.loss)


def test_learner_refuses_nonfinite_loss_with_finite_gradient(monkeypatch):
    monkeypatch.setattr(UpdateShare, "sum", lambda self, value: value * math.inf)
    policy = random_policy()
    stats = with_norms(Learner(policy, CONFIG), 1.0).update(MIXED)
    assert (stats.skipped, stats.refused, policy.version) == (True, 1, 0)


@pytest.mark.parametrize("config", [changed(CONFIG, epochs=3), IN_FOURS], ids=["epochs", "steps"])
def test_refused_step_ends_the_update_and_keeps_earlier_steps(config):
    policy = random_policy()
    stats = with_norms(Learner(policy, config), 1.0, math.nan).update(GROUPS)
    assert (stats.skipped, stats.refused, policy.version) == (False, 1, 1)


def test_update_reports_first_epoch_loss_and_counts_tokens_once():
    one, two = (
        Learner(random_policy(), changed(CONFIG, epochs=n, lr=0.05)).update([*MIXED, *PEERS])
        for n in (1, 2)
    )
    first = ("loss", "grad_norm", "tokens_trained", "entropy", "largest_share", "groups_bounded")
    assert [getattr(one, n) for n in first] == pytest.approx([getattr(two, n) for n in first])
    assert one.clip_fraction == 0.0 < two.clip_fraction, "only later epochs exceed the clip bounds"


def test_update_reports_last_step_learning_rate():
    learner = Learner(random_policy(), changed(CONFIG, epochs=2, warmup_steps=4))
    assert learner.update(MIXED).lr == pytest.approx(CONFIG.lr / 2)
    idle = learner.update([group(9, (1.0, 1.0))])
    assert idle.skipped and idle.lr == learner.optimizer.lr > 0.0


def test_uninformative_update_reports_empty_statistics():
    stats = Learner(random_policy(), CONFIG).update([group(9, (1.0, 1.0)), PEERS[1]])
    counted = ("tokens_trained", "groups_informative", "groups_bounded", "unlikely")
    expected = dict.fromkeys((*counted, "refused", "halved"), 0)
    expected |= dict.fromkeys(("staleness", "entropies", "tokens_read"), ())
    expected |= {"lr": CONFIG.lr, "skipped": True, "useful": (0.0,)}
    assert asdict(stats) == {each.name: expected.get(each.name) for each in fields(UpdateStats)}


@torch.no_grad()
def test_update_reports_local_entropies_before_the_first_step():
    policy = random_policy()
    inputs = [PEERS[0], group(9, (1.0, 1.0)), *MIXED]
    stats_of = Learner(policy, changed(CONFIG, epochs=2)).update
    expected = []
    for each in inputs[1:]:
        for done in each.completions:
            text = torch.tensor([[*each.prompt_ids, *done.ids]])
            logits = policy.model(input_ids=text).logits[0, len(each.prompt_ids) - 1 : -1]
            entropies = torch.distributions.Categorical(logits=logits).entropy().tolist()
            expected.append(entropies if len(set(each.rewards)) > 1 else [])
    with torch.enable_grad():
        told = stats_of(inputs).entropies
    assert [len(each) for each in told] == [len(each.completions) for each in inputs[1:]]
    for some, others in zip((line for each in told for line in each), expected, strict=True):
        assert some == pytest.approx(others, abs=1e-4)


def test_update_reports_usefulness_of_peer_groups_in_order():
    learner = Learner(random_policy(), CONFIG)
    stats = learner.update([MIXED[0], PEERS[1], MIXED[1], PEERS[0]])
    assert len(stats.useful) == 2 and stats.useful[0] == 0.0
    same = [replace(each, rewards=(1.0,) * len(each.rewards)) for each in [*MIXED, *PEERS]]
    assert learner.update(same).useful == (0.0, 0.0)


def single(rewards):
    """Build a group of different single-token completions."""
    done = tuple(TrainingCompletion((n,), (True,)) for n, _ in enumerate(rewards))
    return TrainingGroup((90,), done, rewards, local=True)


@pytest.mark.parametrize(
    ("rewards", "falling"), [((1.0, 0.0, 0.0, 0.0), 3), ((0.0, 1.0, 1.0, 1.0), 1)]
)
def test_trust_region_uses_configured_clip_bounds(rewards, falling):
    for low, high, left in ((0.0, 1e9, falling), (1.0, 0.0, 4 - falling)):
        config = changed(CONFIG, epochs=2, lr=0.01, clip_low=low, clip_high=high)
        stats = Learner(random_policy(), config).update([single(rewards)])
        assert stats.clip_fraction == left / 8, "the first of two epochs clips nothing"


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize(("high", "left"), [(0.25, 1.0), (0.32, 0.0)])
def test_proximal_policy_is_half_way_for_data_one_update_old(epochs, high, left):
    """Half of the drift of 0.5 nats is in the ratio: 1.284 for every token."""
    clip = {"proximal_policy": "versions", "clip_low": 1.0, "clip_high": high}
    config = changed(CONFIG, epochs=epochs, lr=1e-9, **clip)
    learner = Learner(policy_at(2 * epochs), config, decoupled=True)
    assert learner.update(dated(behaving(MIXED, 0.5), epochs)).clip_fraction == left


def test_learner_rejects_future_version_before_any_change():
    policy = policy_at(3)
    learner = Learner(policy, CONFIG)
    before, state = weights(policy), str(learner.state_dict())
    late = group(5, (1.0, 1.0))
    first, *others = late.completions
    versions = (*(3 for _ in first.ids[1:]), 5)
    late = replace(late, completions=(replace(first, versions=versions), *others))
    with pytest.raises(ValueError, match="version 5 of the policy, which is at 3"):
        learner.update([*MIXED, late])
    assert torch.equal(weights(policy), before)
    assert policy.version == 3 and str(learner.state_dict()) == state
    policy.version = 5
    assert not learner.update([*MIXED, late]).skipped


def test_out_of_memory_retry_does_not_add_gradients_twice():
    long = replace(group(7, (1.0, 0.0)), prompt_ids=tuple(range(1, 41)))
    config, sizes = changed(CONFIG, micro_batch_tokens=2 * 48), []

    def after(room):
        policy = parts.cramped_policy(room)
        policy.model.register_forward_pre_hook(
            lambda _, __, given: sizes.append(given["input_ids"].numel()), with_kwargs=True
        )
        return Learner(policy, config).update([*MIXED, long])

    usual = after(1 << 30)
    assert sizes[0] < max(sizes), "the first micro-batch fits before memory runs out"
    stats = after(max(sizes) - 1)
    assert stats.halved > 0
    for figure in ("tokens_trained", "loss", "grad_norm"):
        assert getattr(stats, figure) == pytest.approx(getattr(usual, figure), rel=1e-3), figure


@pytest.fixture(scope="module")
def new():
    return dated(behaving([group(7, (0.0, 0.0)), group(8, (1.0, 1.0))], 0.25), VERSION)


def updated(groups, newest, **keys):
    """Return the log-prob mismatch and the updated weights."""
    policy = policy_at(VERSION)
    stats = Learner(policy, changed(CONFIG, **keys)).update(groups, lambda: newest)
    assert not stats.skipped
    return stats.logprob_mismatch, weights(policy)


@pytest.mark.parametrize("groups", [EARLIER, PEER_MIXED], ids=["earlier versions", "peer groups"])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("tokens", [8, 4096])
def test_logprob_mismatch_falls_back_to_newest_completions(groups, epochs, tokens, new):
    keys = {"epochs": epochs, "micro_batch_tokens": tokens}
    gap, after = updated(groups, new, **keys)
    assert gap == pytest.approx(0.25, abs=1e-4)
    without, same = updated(groups, [], **keys)
    assert without is None
    assert torch.equal(after, same), "newest completions do not affect the update"
    local = dated(behaving([group(5, (0.0, 1.0))], 0.5), VERSION)
    assert updated([*groups, *local], new, **keys)[0] == pytest.approx(0.5, abs=1e-4), "local first"


def test_logprob_mismatch_uses_only_current_version():
    (each,) = behaving([group(7, (0.0,))], 0.25)
    split = len(each.completions[0].ids) // 2
    late = parts.with_completions(
        each,
        behaviour=lambda done: (*(-9.0,) * split, *done.behaviour[split:]),
        versions=lambda done: (*(VERSION - 1,) * split, *(VERSION,) * (len(done.ids) - split)),
    )
    assert updated(EARLIER, [late])[0] == pytest.approx(0.25, abs=1e-4)
    assert updated(EARLIER, [late], max_completion_tokens=split)[0] is None
    assert updated(EARLIER, dated([each], VERSION - 1))[0] is None


def test_newest_rows_returns_a_few_newest_completions():
    policy = policy_at(VERSION)
    groups = dated([group(seed, (0.0,) * 3) for seed in range(5)], VERSION)
    done = [completion for each in groups for completion in each.completions]
    rows = newest_rows(groups, policy, longest=64)
    assert [row.completions[0] for row in rows] == done[::-1][:MOST_COMPLETIONS]
    long = replace(groups[0], prompt_ids=(5,) * policy.context_length)
    assert newest_rows([long], policy, longest=64) == []


def test_sequence_loss_clip_fraction_counts_completions():
    policy, groups = random_policy(), [single((1.0, 0.0)), group(1, (0.0, 1.0, 0.0, 0.5))]
    config = changed(CONFIG, loss="gspo", epochs=2, lr=1e-3, clip_low=0.4, clip_high=0.6)
    learner = Learner(policy, config)
    step = learner.optimizer.step

    @torch.no_grad()
    def means():
        done = [(each.prompt_ids, c.ids) for each in groups for c in each.completions]
        return torch.tensor([lone_logprobs(policy, *each).mean() for each in done])

    seen = [means()]
    learner.optimizer.step = lambda: (step(), seen.append(means()))
    stats = learner.update(groups)
    ratios = (seen[1] - seen[0]).exp().tolist()
    left = sum(not 0.6 <= ratio <= 1.6 for ratio in ratios)
    assert 0 < left < len(ratios) == 6
    assert stats.clip_fraction == pytest.approx(left / 12), "the first of two epochs clips nothing"
