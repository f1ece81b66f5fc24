"""A policy and an environment take turns, and token ids are never re-encoded."""

from itertools import chain, pairwise

import pytest

from experiments.recipe.local_verifier import LocalVerifier
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.environments import games
from node.evaluation.evaluator import Evaluator
from node.tasks.scorer import settled
from node.trajectories.player import Player, verified
from node.trajectories.trajectory import OpenTrajectory, TurnLimits
from protocol.rollout import Completion, Finish, Writer
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.verification import CRASHED, Scores, VerifierError
from tests.node.environments.parts import FOR_TESTS, spec
from tests.support import random_policy

LIMITS = TurnLimits(turns=4, turn_tokens=3, tokens=12)
SAMPLING = Sampling(max_new_tokens=5, seed=1)
NAMES = ("echo", "drawing", "tripping")


@pytest.fixture
def verifier(monkeypatch):
    monkeypatch.setattr(games, "SHIPPED", {**games.SHIPPED, **FOR_TESTS})
    monkeypatch.setattr("node.tasks.sources.environments.SHIPPED", games.SHIPPED)
    return LocalVerifier([spec(name) for name in NAMES])


def terse():
    """Return a policy with short turns: every third token ends a turn."""
    policy = random_policy()
    policy.stop_ids = tuple(range(0, policy.vocabulary, 3))
    return policy


def tasks(count):
    return [TaskRef(NAMES[seed % len(NAMES)], 0, seed) for seed in range(count)]


def play(policy, scorer, refs, limits=LIMITS):
    prompts = [policy.encode_prompt(prompt) for prompt in scorer.prompts(refs)]
    player = Player(policy, TransformersEngine(policy, seed=0), scorer, limits)
    return player.play(refs, prompts, 3, SAMPLING)


def test_failed_play_does_not_affect_the_next_play(verifier, monkeypatch):
    policy, refs = terse(), tasks(6)
    engine = TransformersEngine(policy, seed=0)
    prompts = [policy.encode_prompt(prompt) for prompt in verifier.prompts(refs)]
    poll, polls = engine.poll, []

    def failing(seconds, stream=0):
        polls.append(stream)
        if len(polls) == 3:
            raise MemoryError
        return poll(seconds, stream)

    monkeypatch.setattr(engine, "poll", failing)
    player = Player(policy, engine, verifier, LIMITS)
    with pytest.raises(MemoryError):
        player.play(refs, prompts, 3, SAMPLING)
    played = player.play(refs, prompts, 3, SAMPLING)
    assert [len(group) for group in played] == [3] * 6
    assert all(each.reward is not None for group in played for each in group)
    assert player.play(refs, prompts, 3, SAMPLING) == play(policy, verifier, refs)


def test_trajectories_alternate_obey_limits_and_replay_their_reward(verifier):
    policy, refs = terse(), tasks(9)
    groups = play(policy, verifier, refs)
    assert groups == play(terse(), verifier, refs), "samples depend only on the seed"
    assert {len(each.turns) for group in groups for each in group} >= {1, 2, 3}
    for ref, group in zip(refs, groups, strict=True):
        (scores,) = verified(verifier, [(ref, group)])
        assert isinstance(scores, Scores)
        for each, reward in zip(group, scores.rewards, strict=True):
            assert each.reward == reward and each.lost is None
            assert Completion(each.segments, reward, each.finish).alternates
            assert len(each.turns) <= LIMITS.turns
            lengths = [len(turn.sample.tokens.ids) for turn in each.turns]
            assert sum(lengths) <= LIMITS.tokens and max(lengths) <= LIMITS.turn_tokens


def test_training_input_matches_policy_and_trains_its_own_tokens(verifier):
    policy = terse()
    for each in chain(*play(policy, verifier, tasks(6))):
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


def test_trajectory_at_a_limit_ends_with_the_reward_so_far(verifier):
    narrow, (prompt,) = terse(), verifier.prompts(tasks(1))
    narrow.context_length = len(narrow.encode_prompt(prompt)) + LIMITS.turn_tokens + 2
    for policy, count, limits in (
        (terse(), 3, TurnLimits(1, 3, 12)),
        (terse(), 3, TurnLimits(4, 3, 3)),
        (narrow, 1, LIMITS),
    ):
        for each in chain(*play(policy, verifier, tasks(count), limits)):
            assert len(each.turns) == 1 and each.reward is not None
            assert each.finish is Finish.LENGTH or each.text == "stop"


class Lossy:
    """Loses every second trajectory that starts after it, at its first turn."""

    def __init__(self, verifier):
        self._verifier, self._before = verifier, OpenTrajectory(TaskRef("echo", 0, 0), []).key

    def __getattr__(self, name):
        return getattr(self._verifier, name)

    def play_each(self, moves):
        lost, play = settled(VerifierError(CRASHED, "gone")), self._verifier.play_each
        return [play([m])[0] if (m.key - self._before) % 2 else lost for m in moves]


def test_lost_environment_ends_its_trajectory_and_drops_its_group(verifier):
    policy, scorer, counters = terse(), Lossy(verifier), Counters()
    (group,) = play(policy, scorer, tasks(1))
    assert [each.lost is None for each in group] == [True, False, True]
    assert group[1].reward is None and len(group[1].turns) == 1
    (result,) = verified(scorer, [(tasks(1)[0], group)])
    assert isinstance(result, VerifierError) and result.reason == CRASHED
    engine = TransformersEngine(policy, seed=0)
    evaluator = Evaluator(policy, engine, Lossy(verifier), tasks(3), SAMPLING, counters, LIMITS)
    rewards = evaluator.evaluate(2).rewards
    assert [row[1] for row in rewards] == [0.0] * 3, "a lost trajectory has reward 0"
    assert counters.snapshot()["heldout_lost"] == 3


def test_environments_do_not_change_single_turn_completions(verifier):
    policy = terse()
    refs = [TaskRef("sums", 0, 1), *tasks(2)]
    prompts = [policy.encode_prompt("Add 1 and 2:"), *map(policy.encode_prompt, ["a", "b"])]
    engine = TransformersEngine(policy, seed=0)
    player = Player(policy, engine, verifier, LIMITS)
    (once, *_) = player.play(refs, prompts, 3, SAMPLING)
    (samples,) = engine.generate(prompts[:1], 3, SAMPLING)
    assert [each.turns[0].sample for each in once] == samples
    assert all(each.reward is None and len(each.turns) == 1 for each in once)
