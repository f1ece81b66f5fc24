"""Own trajectories along a partner's: turns that depart are replaced, and never trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.environments import games
from node.policy.policy import Policy
from node.rollout.replay import MOST_SCRIPTS, SemiOnline, SemiOnlineLimits
from node.tasks.verifier.in_process import LocalJudge
from node.trajectories.player import Player
from node.trajectories.trajectory import Script, TurnLimits
from protocol.rollout import Completion, Finish, Group, Segment, Writer
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, TaskRef
from tests.node.environments.parts import FOR_TESTS, spec
from tests.support import random_policy

AUTHOR = bytes(range(32))
SAMPLING = Sampling(max_new_tokens=12, seed=4)
LIMITS = TurnLimits(turns=4, turn_tokens=3, tokens=40)
ECHO = TaskRef("echo", 0, 9)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> LocalJudge:
    monkeypatch.setattr(games, "SHIPPED", {**games.SHIPPED, **FOR_TESTS})
    monkeypatch.setattr("node.tasks.sources.environments.SHIPPED", games.SHIPPED)
    return LocalJudge([spec("echo"), spec("tripping")])


@pytest.fixture
def policy() -> Policy:
    made = random_policy()
    made.stop_ids = tuple(range(0, made.vocabulary, 3))
    return made


def player(policy: Policy, judge: LocalJudge) -> Player:
    return Player(policy, TransformersEngine(policy, seed=0), judge, LIMITS)


@pytest.mark.parametrize("patches", [0, 1, 2, 3])
def test_own_turns_are_held_to_the_script_as_often_as_it_may_be(policy, judge, patches):
    policy.stop_ids = (*policy.stop_ids, policy.encode_completion("", stopped=True)[-1])
    script = Script(("b", "b", "b"), patches)
    prompts = [policy.encode_prompt(text) for text in judge.prompts([ECHO])]
    (group,) = player(policy, judge).play([ECHO], prompts, 4, SAMPLING, {ECHO: script})
    (plain,) = player(policy, judge).play([ECHO], prompts, 4, SAMPLING)
    if not patches:
        assert group == plain
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
    prompts = [policy.encode_prompt(text) for text in judge.prompts([ECHO])]
    (group,) = player(policy, judge).play(
        [ECHO], prompts, 3, SAMPLING, {ECHO: Script(("b", "stop"), 2)}
    )
    for each in group:
        expected: list[int] = []
        for turn in each.turns:
            expected += turn.sample.tokens.ids
            if turn.observation is not None:
                expected += policy.encode_observation(turn.observation)
        assert each.training().ids == tuple(expected)
        assert each.turns[-1].sample.text == "stop" and each.finish is Finish.STOP


def pooled(number: int, rewards: tuple[float, ...], env: str = "echo") -> PooledGroup:
    completions = tuple(
        Completion(
            (
                Segment(Writer.POLICY, "b"),
                Segment(Writer.ENVIRONMENT, "1 b"),
                Segment(Writer.POLICY, f"stop{at}"),
            ),
            reward,
            Finish.STOP,
        )
        for at, reward in enumerate(rewards)
    )
    group = Group(env, 0, 7, number, completions)
    return PooledGroup(AUTHOR, b"", group, "?", bytes(32), 0, 0.0)


def semi_online(
    policy: Policy, judge: LocalJudge, groups: int, counters: Counters | None = None
) -> SemiOnline:
    return SemiOnline(
        SemiOnlineLimits(groups, 2),
        player(policy, judge),
        policy,
        judge,
        SAMPLING,
        3,
        counters or Counters(),
    )


def test_each_script_makes_one_group_the_newest_first(policy, judge):
    counters = Counters()
    parts = semi_online(policy, judge, 2, counters)
    parts.observe([pooled(n, (0.0, 1.0)) for n in range(3)])
    first, second, third = parts.generate(), parts.generate(), parts.generate()
    assert [len(first), len(second), len(third)] == [2, 1, 0]
    asked = judge.prompts([TaskRef.shared(AUTHOR, "echo", 0, 7, n) for n in (2, 1, 0)])
    prompts = [group.prompt_ids for group in (*first, *second)]
    assert prompts == [tuple(policy.encode_prompt(prompt)) for prompt in asked]
    assert all(group.own and len(group.completions) == 3 for group in first)
    assert counters.snapshot() == {"scripted_groups": 3}


def test_groups_without_a_better_trajectory_and_families_of_one_turn_make_none(policy, judge):
    parts = semi_online(policy, judge, 4)
    parts.observe([pooled(0, (0.5, 0.5)), pooled(1, (0.0, 1.0), env="sums")])
    assert parts.generate() == []


def test_without_the_option_nothing_is_remembered_or_asked(policy, judge, monkeypatch):
    parts = semi_online(policy, judge, 0)
    parts.observe([pooled(0, (0.0, 1.0))])
    monkeypatch.setattr(judge, "prompts", None)
    assert parts.generate() == []


def test_no_more_is_remembered_than_is_said(policy, judge):
    parts = semi_online(policy, judge, MOST_SCRIPTS + 9)
    parts.observe([pooled(n, (0.0, 1.0)) for n in range(MOST_SCRIPTS + 5)])
    counted = parts.generate()
    assert len(counted) == MOST_SCRIPTS


def test_a_task_that_cannot_be_built_here_is_left_out_and_counted(policy, judge):
    counters = Counters()
    parts = semi_online(policy, judge, 2, counters)
    bad = pooled(0, (0.0, 1.0))
    parts.observe([replace(bad, group=replace(bad.group, level=5)), pooled(1, (0.0, 1.0))])
    assert len(parts.generate()) == 1
    assert counters.snapshot()["scripted_groups_lost{reason=unknown_env}"] == 1


def test_a_task_whose_question_leaves_no_room_here_is_left_out_and_counted(
    policy, judge, monkeypatch
):
    counters = Counters()
    parts = semi_online(policy, judge, 1, counters)
    parts.observe([pooled(1, (0.0, 1.0))])
    monkeypatch.setattr(policy, "encode_prompt", lambda text: [5] * policy.context_length)
    assert parts.generate() == []
    assert counters.snapshot() == {"scripted_groups_lost{reason=no_room}": 1}
