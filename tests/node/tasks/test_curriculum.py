import json
import random
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from node.errors import ConfigError, TaskSetError
from node.tasks.curriculum import (
    KEPT,
    AutoCurriculum,
    Beliefs,
    Curriculum,
    Skill,
    TaskSampler,
    Thompson,
    UniformCurriculum,
    chosen_levels,
    informative_probability,
    served_levels,
)
from protocol.manifest import EnvSpec

LEVELS = (("gcd", 0), ("gcd", 1), ("lcm", 0))


def counts(weights: dict[str, float], count: int = 4000) -> Counter[tuple[str, int]]:
    sampler = TaskSampler(LEVELS, weights, random.Random(1))
    return Counter(sampler.next() for _ in range(count))


def test_sampler_treats_envs_and_their_levels_equally_by_default():
    seen = counts({})
    assert seen["lcm", 0] == pytest.approx(2000, abs=150)
    assert [seen["gcd", level] for level in (0, 1)] == pytest.approx([1000, 1000], abs=150)
    assert counts({"gcd": 3.0, "lcm": 1.0})["lcm", 0] == pytest.approx(1000, abs=150)
    assert counts({"gcd": 0.5})["lcm", 0] == 0


@pytest.mark.parametrize("curriculum", [UniformCurriculum, Thompson, Skill, AutoCurriculum])
def test_sampler_resumes_from_its_state_in_json(curriculum):
    chances = (random.Random(seed) for seed in (3, 4))
    sampler, other = (TaskSampler(LEVELS, {}, chance, curriculum(8)) for chance in chances)
    for _ in range(20):
        sampler.observe(sampler.next(), [1.0, 0.0, 0.0])
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert [other.next() for _ in range(50)] == [sampler.next() for _ in range(50)]


def sampled(kind: type[Curriculum], draws: int = 400) -> list[tuple[str, int]]:
    """Sample while gcd 0 is always solved, gcd 1 never, and lcm 0 half of the time."""
    rates = {("gcd", 0): 1.0, ("gcd", 1): 0.0, ("lcm", 0): 0.5}
    sampler, rng = TaskSampler(LEVELS, {}, random.Random(1), kind(8)), random.Random(2)
    seen = []
    for _ in range(draws):
        seen.append(sampler.next())
        sampler.observe(seen[-1], [float(rng.random() < rates[seen[-1]]) for _ in range(8)])
    return seen


def test_thompson_prefers_partly_solved_levels_and_drops_none():
    assert sampled(UniformCurriculum).count(("lcm", 0)) < 240
    assert sampled(Thompson).count(("lcm", 0)) > 320
    assert set(sampled(Thompson)[-100:]) == set(LEVELS)


GRADED = tuple((env, level) for env in ("hard", "sums") for level in range(8))


def placements(kind: type[Curriculum], tops: dict[str, int], draws: int = 600) -> Counter[str]:
    """Count samples relative to each family's top level, solved half of the time."""
    sampler, rng = TaskSampler(GRADED, {}, random.Random(1), kind(8)), random.Random(2)
    seen: Counter[str] = Counter()
    for number in range(draws):
        env, level = sampler.next()
        rate = 0.95 if level < tops[env] else 0.5 if level == tops[env] else 0.0
        sampler.observe((env, level), [float(rng.random() < rate) for _ in range(8)])
        if number >= draws // 2:
            place = "below" if level < tops[env] else "at" if level == tops[env] else "above"
            seen[place] += 1
    return seen


@pytest.mark.parametrize("kind", [Skill, AutoCurriculum])
def test_curriculum_follows_skill_and_still_samples_other_levels(kind):
    seen = placements(kind, {"sums": 3, "hard": -1})
    uniform = placements(UniformCurriculum, {"sums": 3, "hard": -1})
    assert seen["at"] > 3 * uniform["at"] and seen["above"] < 0.6 * uniform["above"]
    assert seen["below"] > 10 and seen["above"] > 10


def test_auto_is_uniform_if_no_family_has_six_levels():
    samplers = [
        TaskSampler(LEVELS, {}, random.Random(1), kind(8))
        for kind in (UniformCurriculum, AutoCurriculum)
    ]
    for _ in range(50):
        one, other = (sampler.next() for sampler in samplers)
        assert one == other
        samplers[1].observe(other, [0.0] * 8)


def test_chosen_levels_follow_the_config():
    assert chosen_levels(LEVELS, {}) == LEVELS
    assert chosen_levels(LEVELS, {"gcd": [1]}) == (("gcd", 1), ("lcm", 0))
    with pytest.raises(ConfigError, match=r"tasks.levels.gcd: \[\]\. List its levels"):
        chosen_levels(LEVELS, {"gcd": []})
    with pytest.raises(ConfigError, match=r"tasks.levels: 'gdc'.*use gcd, lcm"):
        chosen_levels(LEVELS, {"gdc": [0]})
    with pytest.raises(ConfigError, match=r"tasks.levels.gcd: 2\. Use a level from 0 to 1"):
        chosen_levels(LEVELS, {"gcd": [0, 2]})


def test_sampler_uses_only_levels_with_a_weight():
    sampler = TaskSampler(LEVELS, {"gcd": 1.0}, random.Random(1), Thompson(8))
    assert {env for env, _ in (sampler.next() for _ in range(200))} == {"gcd"}
    assert TaskSampler(LEVELS, {"lcm": 1.0}, random.Random(1)).levels == (("lcm", 0),)


def test_served_levels_keep_the_task_set_order():
    spec = EnvSpec("gcd", "reasoning-gym", "0.1.25", ("{}", "{}"), "{question}", "text")
    specs = [spec, replace(spec, name="gone"), replace(spec, name="lcm", levels=("{}",))]
    assert served_levels(specs, ("lcm", "gcd")) == LEVELS


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"gdc": 1.0}, "tasks.weights: 'gdc'.*use gcd, lcm"),
        ({"gcd": -1.0}, "tasks.weights.gcd: -1"),
        ({"gcd": float("nan")}, "tasks.weights.gcd: nan"),
        ({"gcd": 0.0}, "weight above 0"),
    ],
)
def test_sampler_rejects_invalid_weights_with_a_fix(weights, message):
    with pytest.raises(ConfigError, match=message):
        TaskSampler(LEVELS, weights, random.Random(1))


def test_error_for_unserved_task_set_explains_the_fix():
    with pytest.raises(TaskSetError, match=r"none of the .* families is available here: name"):
        TaskSampler([], {}, random.Random(0))


GROUP = 8
LEVEL = ("gcd", 0)


def mean_belief(beliefs: Beliefs) -> float:
    rng = random.Random(0)
    return fmean(beliefs.draw(LEVEL, rng) for _ in range(4000))


def test_beliefs_are_neutral_for_unseen_and_long_unused_levels():
    beliefs = Beliefs()
    assert mean_belief(beliefs) == pytest.approx(0.5, abs=0.02)
    beliefs.observe(LEVEL, 0.0, GROUP)
    assert mean_belief(beliefs) == pytest.approx(0.1, abs=0.02)
    for _ in range(2000):
        beliefs.tick()
    assert mean_belief(beliefs) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_beliefs_converge_for_a_constant_success_rate(rate):
    beliefs = Beliefs()
    for _ in range(60):
        beliefs.observe(LEVEL, GROUP * rate, GROUP * (1 - rate))
    won, lost = (1 + GROUP * share / (1 - KEPT) for share in (rate, 1 - rate))
    assert mean_belief(beliefs) == pytest.approx(won / (won + lost), abs=0.01)


def test_group_is_most_informative_at_half_success_rate():
    chances = [informative_probability(rate / 10, GROUP) for rate in range(11)]
    assert chances[0] == chances[10] == 0.0 and max(chances) == chances[5]
    assert chances == pytest.approx(chances[::-1])


class Ladder(Curriculum):
    """A package's curriculum, with a state format of its own."""

    def __init__(self, group_size=GROUP, options=None):
        super().__init__(group_size, options)
        self.step = 0

    def next(self, levels, weights, rng):
        self.step += 1
        return levels[self.step % len(levels)]

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


@pytest.mark.parametrize(
    ("before", "after"), [(Ladder, Thompson), (AutoCurriculum, Ladder), (UniformCurriculum, Ladder)]
)
def test_curriculum_resets_if_the_saved_state_is_incompatible(before, after):
    first = TaskSampler(LEVELS, {}, random.Random(1), before(GROUP))
    first.next()
    state = json.loads(json.dumps(first.state_dict()))
    loaded = TaskSampler(LEVELS, {}, random.Random(2), after(GROUP))
    loaded.load_state_dict(state)
    new = TaskSampler(LEVELS, {}, random.Random(2), after(GROUP)).state_dict()
    assert loaded.state_dict()["beliefs"] == new["beliefs"]
    assert json.loads(json.dumps(loaded.state_dict()))["rng"] == state["rng"]


def test_curriculum_keeps_a_compatible_saved_state():
    first = TaskSampler(LEVELS, {}, random.Random(1), AutoCurriculum(GROUP))
    first.observe(LEVEL, [1.0] * GROUP)
    loaded = TaskSampler(LEVELS, {}, random.Random(1), Thompson(GROUP))
    loaded.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert loaded.state_dict()["beliefs"] == first.state_dict()["beliefs"]
