"""A policy and an environment write by turns, and token ids are never spelled again."""

from itertools import chain, pairwise

import pytest

from experiments.recipe.local_judge import LocalJudge
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.environments import games
from node.evaluation.evaluator import Evaluator
from node.tasks.scorer import settled
from node.trajectories.player import Player, judged
from node.trajectories.trajectory import OpenTrajectory, TurnLimits
from protocol.rollout import Completion, Finish, Writer
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.verification import CRASHED, JudgeRefused, Verdict
from tests.node.environments.parts import FOR_TESTS, spec
from tests.support import random_policy

LIMITS = TurnLimits(turns=4, turn_tokens=3, tokens=12)
SAMPLING = Sampling(max_new_tokens=5, seed=1)
NAMES = ("echo", "drawing", "tripping")


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setattr(games, "SHIPPED", {**games.SHIPPED, **FOR_TESTS})
    monkeypatch.setattr("node.tasks.sources.environments.SHIPPED", games.SHIPPED)
    return LocalJudge([spec(name) for name in NAMES])


def talker():
    """A policy whose turns are short: every third token ends one."""
    policy = random_policy()
    policy.stop_ids = tuple(range(0, policy.vocabulary, 3))
    return policy


def tasks(count):
    return [TaskRef(NAMES[seed % len(NAMES)], 0, seed) for seed in range(count)]


def play(policy, scorer, refs, limits=LIMITS):
    prompts = [policy.encode_prompt(prompt) for prompt in scorer.prompts(refs)]
    player = Player(policy, TransformersEngine(policy, seed=0), scorer, limits)
    return player.play(refs, prompts, 3, SAMPLING)


def test_what_a_play_that_failed_has_left_behind_is_no_part_of_the_next(judge, monkeypatch):
    policy, refs = talker(), tasks(6)
    engine = TransformersEngine(policy, seed=0)
    prompts = [policy.encode_prompt(prompt) for prompt in judge.prompts(refs)]
    poll, polls = engine.poll, []

    def failing(seconds, stream=0):
        polls.append(stream)
        if len(polls) == 3:
            raise MemoryError
        return poll(seconds, stream)

    monkeypatch.setattr(engine, "poll", failing)
    player = Player(policy, engine, judge, LIMITS)
    with pytest.raises(MemoryError):
        player.play(refs, prompts, 3, SAMPLING)
    played = player.play(refs, prompts, 3, SAMPLING)
    assert [len(group) for group in played] == [3] * 6
    assert all(each.reward is not None for group in played for each in group)
    assert player.play(refs, prompts, 3, SAMPLING) == play(policy, judge, refs)


def test_every_trajectory_alternates_keeps_its_caps_and_is_replayed_to_its_own_reward(judge):
    policy, refs = talker(), tasks(9)
    groups = play(policy, judge, refs)
    assert groups == play(talker(), judge, refs), "what is written follows from the seed alone"
    assert {len(each.turns) for group in groups for each in group} >= {1, 2, 3}
    for ref, group in zip(refs, groups, strict=True):
        (verdict,) = judged(judge, [(ref, group)])
        assert isinstance(verdict, Verdict)
        for each, reward in zip(group, verdict.rewards, strict=True):
            assert each.reward == reward and each.lost is None
            assert Completion(each.segments, reward, each.finish).alternates
            assert len(each.turns) <= LIMITS.turns
            lengths = [len(turn.sample.tokens.ids) for turn in each.turns]
            assert sum(lengths) <= LIMITS.tokens and max(lengths) <= LIMITS.turn_tokens


def test_the_learner_reads_what_the_policy_read_and_is_trained_on_its_own_tokens(judge):
    policy = talker()
    for each in chain(*play(policy, judge, tasks(6))):
        training = each.training()
        assert training.versions is not None and training.behaviour is not None
        own = [i for i, ours in zip(training.ids, training.trained, strict=True) if ours]
        assert tuple(own) == each.tokens.ids and policy.decode(own) == each.text
        read: list[int] = []
        for segment in each.segments:
            if segment.writer is Writer.ENVIRONMENT:
                read += policy.encode_observation(segment.text)
            elif segment.tokens is not None:
                read += segment.tokens.ids
        assert tuple(read) == training.ids
        assert all(a <= b for a, b in pairwise(training.versions))


def test_a_trajectory_that_is_out_of_turns_tokens_or_context_is_cut_with_the_reward_so_far(judge):
    narrow, (prompt,) = talker(), judge.prompts(tasks(1))
    narrow.context_length = len(narrow.encode_prompt(prompt)) + LIMITS.turn_tokens + 2
    for policy, count, limits in (
        (talker(), 3, TurnLimits(1, 3, 12)),
        (talker(), 3, TurnLimits(4, 3, 3)),
        (narrow, 1, LIMITS),
    ):
        for each in chain(*play(policy, judge, tasks(count), limits)):
            assert len(each.turns) == 1 and each.reward is not None
            assert each.finish is Finish.LENGTH or each.text == "stop"


class Lossy:
    """Loses every second trajectory that is begun after it at its first turn."""

    def __init__(self, judge):
        self._judge, self._before = judge, OpenTrajectory(TaskRef("echo", 0, 0), []).key

    def __getattr__(self, name):
        return getattr(self._judge, name)

    def play_each(self, moves):
        lost, play = settled(JudgeRefused(CRASHED, "gone")), self._judge.play_each
        return [play([m])[0] if (m.key - self._before) % 2 else lost for m in moves]


def test_a_lost_environment_ends_its_own_trajectory_and_gives_up_its_group(judge):
    policy, scorer, counters = talker(), Lossy(judge), Counters()
    (group,) = play(policy, scorer, tasks(1))
    assert [each.lost is None for each in group] == [True, False, True]
    assert group[1].reward is None and len(group[1].turns) == 1
    (found,) = judged(scorer, [(tasks(1)[0], group)])
    assert isinstance(found, JudgeRefused) and found.reason == CRASHED
    engine = TransformersEngine(policy, seed=0)
    evaluator = Evaluator(policy, engine, Lossy(judge), tasks(3), SAMPLING, counters, LIMITS)
    rewards = evaluator.evaluate(2).rewards
    assert [row[1] for row in rewards] == [0.0] * 3, "what is lost is worth nothing"
    assert counters.snapshot()["heldout_lost"] == 3


def test_a_family_of_one_turn_beside_environments_is_written_as_without_them(judge):
    policy = talker()
    refs = [TaskRef("sums", 0, 1), *tasks(2)]
    prompts = [policy.encode_prompt("Add 1 and 2:"), *map(policy.encode_prompt, ["a", "b"])]
    engine = TransformersEngine(policy, seed=0)
    player = Player(policy, engine, judge, LIMITS)
    (once, *_) = player.play(refs, prompts, 3, SAMPLING)
    (samples,) = engine.generate(prompts[:1], 3, SAMPLING)
    assert [each.turns[0].sample for each in once] == samples
    assert all(each.reward is None and len(each.turns) == 1 for each in once)
