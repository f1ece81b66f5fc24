"""Own trajectories along a partner's: turns that depart are replaced, and never trained on."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.recipe.local_judge import LocalJudge
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.environments import games
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.rollout import replay as replay_module
from node.rollout.replay import MOST_SCRIPTS, SemiOnline, SemiOnlineLimits, SuccessPool
from node.trajectories.player import Player
from node.trajectories.trajectory import Script, TurnLimits
from protocol.rollout import Completion, Finish, Group, Segment, Writer
from swarm.common.counters import Counters
from swarm.groups import GroupKey, PooledGroup, TaskRef
from tests.node.environments.parts import FOR_TESTS, spec
from tests.support import random_policy

AUTHOR = bytes(range(32))
pool = partial(SuccessPool, most=2, counters=Counters())
SAMPLING = Sampling(max_new_tokens=12, seed=4)
LIMITS = TurnLimits(turns=4, turn_tokens=3, tokens=40)
ECHO = TaskRef("echo", 0, 9)
SEEN = st.tuples(st.integers(0, 9), st.integers(10, 60), st.sampled_from([0.0, 1.0]))


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setattr(games, "SHIPPED", {**games.SHIPPED, **FOR_TESTS})
    monkeypatch.setattr("node.tasks.sources.environments.SHIPPED", games.SHIPPED)
    return LocalJudge([spec("echo"), spec("tripping")])


@pytest.fixture
def policy():
    made = random_policy()
    made.stop_ids = tuple(range(0, made.vocabulary, 3))
    return made


def player(policy, judge):
    return Player(policy, TransformersEngine(policy, seed=0), judge, LIMITS)


def played(policy, judge, count, *scripts):
    """Trajectories of one task, along a script if there is one."""
    prompts = [policy.encode_prompt(text) for text in judge.prompts([ECHO])]
    along = [{ECHO: script} for script in scripts]
    (group,) = player(policy, judge).play([ECHO], prompts, count, SAMPLING, *along)
    return group


@pytest.mark.parametrize("patches", [0, 1, 2, 3])
def test_own_turns_are_held_to_the_script_as_often_as_it_may_be(policy, judge, patches):
    policy.stop_ids = (*policy.stop_ids, policy.encode_completion("", stopped=True)[-1])
    group = played(policy, judge, 4, Script(("b", "b", "b"), patches))
    assert patches or group == played(policy, judge, 4)
    for each in group:
        texts = [turn.sample.text for turn in each.turns]
        held = [not turn.own for turn in each.turns]
        assert sum(held) <= patches
        assert all(text == "b" for text, other in zip(texts, held, strict=True) if other)
        if sum(held) < patches:
            assert texts[:3] == ["b"] * len(texts[:3]), "it departs nowhere"
        training = each.training()
        own = [i for i, ours in zip(training.ids, training.trained, strict=True) if ours]
        wrote = [t.sample.tokens.ids for t in each.turns if t.own]
        assert own == [token for ids in wrote for token in ids]
        assert each.reward == judge.judge(ECHO, [each.answer(played=True)]).rewards[0]


def test_a_turn_of_a_script_is_read_as_if_the_policy_had_written_it(policy, judge):
    for each in played(policy, judge, 3, Script(("b", "stop"), 2)):
        expected = []
        for turn in each.turns:
            expected += turn.sample.tokens.ids
            if turn.observation is not None:
                expected += policy.encode_observation(turn.observation)
        assert each.training().ids == tuple(expected)
        assert each.turns[-1].sample.text == "stop" and each.finish is Finish.STOP


def pooled(number, rewards=(0.0, 1.0), env="echo"):
    begun = Segment(Writer.POLICY, "b"), Segment(Writer.ENVIRONMENT, "1 b")
    completions = tuple(
        Completion((*begun, Segment(Writer.POLICY, f"stop{at}")), reward, Finish.STOP)
        for at, reward in enumerate(rewards)
    )
    return PooledGroup(AUTHOR, b"", Group(env, 0, 7, number, completions), "?", bytes(32), 0, 0.0)


def semi_online(policy, judge, groups, *seen, counters=None):
    limits, counters = SemiOnlineLimits(groups, 2), counters or Counters()
    made = SemiOnline(limits, player(policy, judge), policy, judge, SAMPLING, 3, counters)
    made.observe(seen)
    return made


def test_each_script_makes_one_group_the_newest_first(policy, judge):
    counters = Counters()
    parts = semi_online(policy, judge, 2, *map(pooled, range(3)), counters=counters)
    first, second, third = parts.generate(), parts.generate(), parts.generate()
    assert [len(first), len(second), len(third)] == [2, 1, 0]
    asked = judge.prompts([TaskRef.shared(AUTHOR, "echo", 0, 7, n) for n in (2, 1, 0)])
    prompts = [group.prompt_ids for group in (*first, *second)]
    assert prompts == [tuple(policy.encode_prompt(prompt)) for prompt in asked]
    assert all(group.own and len(group.completions) == 3 for group in first)
    assert counters.snapshot() == {"scripted_groups": 3}


def test_no_more_is_remembered_than_is_said_and_nothing_without_the_option(
    policy, judge, monkeypatch
):
    seen = pooled(0, (0.5, 0.5)), pooled(1, env="sums")
    assert semi_online(policy, judge, 4, *seen).generate() == [], "none better, or of one turn"
    seen = map(pooled, range(MOST_SCRIPTS + 5))
    assert len(semi_online(policy, judge, MOST_SCRIPTS + 9, *seen).generate()) == MOST_SCRIPTS
    parts = semi_online(policy, judge, 0, pooled(0))
    monkeypatch.setattr(judge, "prompts", None)
    assert parts.generate() == []


def test_a_task_that_cannot_be_built_or_leaves_no_room_here_is_left_out_and_counted(
    policy, judge, monkeypatch
):
    counters, bad = Counters(), pooled(0)
    bad = replace(bad, group=replace(bad.group, level=5))
    parts = semi_online(policy, judge, 2, bad, pooled(1), counters=counters)
    assert len(parts.generate()) == 1
    assert counters.snapshot()["scripted_groups_lost{reason=unknown_env}"] == 1
    counters = Counters()
    parts = semi_online(policy, judge, 1, pooled(1), counters=counters)
    monkeypatch.setattr(policy, "encode_prompt", lambda text: [5] * policy.context_length)
    assert parts.generate() == []
    assert counters.snapshot() == {"scripted_groups_lost{reason=no_room}": 1}


def answer(*ids):
    """A turn, an observation and a turn; of the policy's first version."""
    trained = tuple(place != 1 for place in range(len(ids)))
    return TrainingCompletion(ids, trained, tuple(-float(i) for i in ids), (1,) * len(ids))


def group(prompt, *rewards, first=10):
    done = tuple(answer(first + n, 5, first) for n in range(len(rewards)))
    return TrainingGroup((prompt,), done, rewards, own=True)


def revived(kept, *groups):
    return kept.revive(groups, lambda authors: range(1000)).training


def test_a_group_that_failed_wholly_is_given_one_right_answer_with_all_that_belongs_to_it():
    counters = Counters()
    kept = SuccessPool(2, counters)
    kept.observe(group(1, 0.0, 1.0, first=10))
    failed, right = group(1, 0.0, 0.0, 0.0, first=20), answer(11, 5, 10)
    (given,) = revived(kept, failed)
    assert given.rewards == (0.0, 0.0, 1.0)
    *others, last = given.completions
    assert others == [*failed.completions[:2]] and not any(each.replayed for each in others)
    assert last == replace(right, replayed=True, versions=last.versions)
    assert counters.snapshot() == {"successes_replayed": 1}
    assert failed.completions[2].ids == (22, 5, 20), "the group itself stays what was written"


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=6))
def test_only_groups_without_any_reward_are_given_one_and_only_one(rewards):
    kept = pool()
    kept.observe(group(1, 1.0, 1.0))
    asked = group(1, *rewards, first=30)
    (given,) = revived(kept, asked)
    assert sum(each.replayed for each in given.completions) == (not any(rewards))
    assert (given == asked) == any(rewards)


def test_another_question_a_half_right_answer_and_an_empty_pool_give_nothing():
    kept, none = pool(), pool(most=0)
    kept.observe(group(1, 1.0, 0.0))
    kept.observe(group(2, 0.5, 0.0))
    none.observe(group(1, 1.0, 0.0))
    first, others = group(1, 0.0, 0.0), (group(2, 0.0, 0.0), group(3, 0.0, 0.0))
    assert revived(kept, *others) == others and revived(none, first) == (first,)


def test_answers_to_one_question_take_turns_and_the_newest_are_kept_each_once():
    for seen, turns in (((10, 20, 30), [20, 30]), ((10, 20, 10), [20, 10])):
        kept = pool()
        for first in seen:
            kept.observe(group(1, 1.0, 0.0, first=first))
        given = [revived(kept, group(1, 0.0, 0.0))[0].completions[-1] for _ in range(4)]
        assert [each.ids[0] for each in given] == 2 * turns


def test_of_too_much_the_questions_are_forgotten_that_were_asked_longest_ago(monkeypatch):
    monkeypatch.setattr(replay_module, "MOST_TOKENS", 3 * (1 + 3))
    kept = pool()
    for prompt in (1, 2, 3):
        kept.observe(group(prompt, 1.0, 0.0))
    revived(kept, group(1, 0.0, 0.0))
    kept.observe(group(4, 1.0, 0.0))
    given = revived(kept, *(group(prompt, 0.0, 0.0) for prompt in (1, 2, 3, 4)))
    assert [max(each.rewards) for each in given] == [1.0, 0.0, 1.0, 1.0]


@given(st.lists(SEEN, max_size=60), st.integers(1, 3))
def test_what_is_kept_stays_within_its_bounds(seen, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_module, "MOST_TOKENS", 20)
        kept = pool(most=most)
        for prompt, first, reward in seen:
            kept.observe(group(prompt, reward, 0.0, first=first))
    tokens = 0
    for prompt in range(10):
        given = [each for _ in range(9) for each in revived(kept, group(prompt, 0.0, 0.0))]
        answers = {each.completions[-1].ids for each in given if any(each.rewards)}
        assert len(answers) <= most
        tokens += bool(answers) + sum(map(len, answers))
    assert tokens <= 20


def test_an_answer_of_anothers_group_is_lent_where_its_author_may_have_one_more():
    kept, key, asked = pool(), GroupKey(b"a" * 32, 7, 3), []
    kept.observe(group(1, 1.0, 0.0), key)
    kept.observe(group(2, 1.0, 0.0))
    failed = [group(1, 0.0, 0.0), group(2, 0.0, 0.0), group(1, 0.0, 0.0)]
    given = kept.revive(failed, lambda authors: asked.append(authors) or [0])
    assert asked == [[key.author, key.author]] and given.lent == (key,)
    assert [max(each.rewards) for each in given.training] == [1.0, 1.0, 0.0]
