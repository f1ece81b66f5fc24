from functools import partial
from typing import Any

import pytest

from node.environments.environment import Episode, finished
from node.environments.own_file import LIBRARIES, environment_of
from node.errors import TaskSetError
from node.tasks.scorer import Answered, Move
from node.tasks.task_set import Allowed, open_envs
from node.tasks.verifier.replay_trial import Trial, try_replays
from node.tasks.verifier.verifier import Verifier
from swarm.groups import TaskRef
from swarm.verification import TrajectoryTexts
from tests.node.environments import parts
from tests.node.environments.parts import written

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces
Task = LIBRARIES["gymnasium"].load()

spec = partial(parts.spec, "gymnasium", version=Task.version)
LAKE = {"id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"]}
FIXED = {**LAKE, "options": {"is_slippery": False}}
PATH = ("down", "down", "right", "right", "down", "right")
"""Path across the lake if it is not slippery."""
TOY = (
    {"id": "Blackjack-v1", "low": -1.0, "actions": ["stick", "hit"]},
    {"id": "CliffWalking-v1", "low": -100.0, "high": -12.0, "options": {"max_episode_steps": 40}},
    {"id": "CliffWalkingSlippery-v1", "options": {"max_episode_steps": 40}},
    {"id": "FrozenLake8x8-v1"},
    {"id": "Taxi-v4", "low": -200.0, "high": 10.0},
    LAKE,
)


def started(seed: int, **settings: Any) -> tuple[Episode, str]:
    episode = Episode(Task, seed, settings)
    return episode, finished(episode.begin())


class Parrot(gymnasium.Env):
    """Shows letters, and rewards every action that repeats them."""

    observation_space = spaces.Text(3, min_length=3, charset="abc")
    action_space = spaces.Text(3, min_length=1, charset="abc")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._shown = "".join(self.np_random.choice(list("abc"), 3))
        return self._shown, {}

    def step(self, action):
        return self._shown, float(action == self._shown), action == "a", False, {}


class Dial(gymnasium.Env):
    kinds = (spaces.Discrete(9), spaces.MultiDiscrete([3, 3]), spaces.MultiBinary(2))
    observation_space = spaces.Tuple(kinds)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        shown = (int(action) + 1, *self.observation_space.sample()[1:])
        return shown, float(action), action == 1, False, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    for each in (Parrot, Dial):
        gymnasium.register(f"test/{each.__name__}-v0", each)
    yield
    for each in (Parrot, Dial):
        del gymnasium.registry[f"test/{each.__name__}-v0"]


def test_worker_plays_and_scores_an_environment():
    task = TaskRef("gymnasium", 0, 7)
    with Verifier([spec(FIXED)], outside=True) as verifier:
        assert verifier.start() == ("gymnasium",)
        (prompt,) = verifier.prompts([task])
        assert prompt.startswith("FrozenLake-v1, episode ")
        assert prompt.endswith("\nAnswer with left, down, right, up\n0")
        moves = [Move(1, task, PATH[:n], final=False) for n in range(1, len(PATH) + 1)]
        *others, last = [verifier.play([move])[0] for move in moves]
        assert last == Answered("", True, 1.0)
        shown = [each.observation for each in others if isinstance(each, Answered)]
        assert shown == ["4", "8", "9", "10", "14"]
        texts = [text for pair in zip(PATH, [*shown, ""], strict=True) for text in pair]
        trajectory = TrajectoryTexts(tuple(texts[:-1]), truncated=False)
        assert verifier.verify(task, [trajectory]).rewards == (1.0,)


def test_toy_texts_pass_the_replay_check():
    assert try_replays([spec(*TOY)], Allowed()) == Trial(("gymnasium",), 24)


ASKS = "Answer with left, down, right, up"


@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        ("down", "4"),
        ("I would go up, no: DOWN!", "4"),
        ("down\nup", "0"),
        ("downwards", ASKS),
        ("1", ASKS),
        ("", ASKS),
    ],
)
def test_last_name_in_a_turn_selects_action(turn, shown):
    episode, _ = started(3, **FIXED)
    assert finished(episode.step(turn)) == shown


def test_unnamed_actions_are_numbers_and_observations_list_parts():
    episode, first = started(3, id="test/Dial-v0")
    assert first.splitlines()[1] == "Answer with -1, 0, 1"
    assert len(first.splitlines()[2].split()) == 5
    assert finished(episode.step("it is -1")).startswith("0 ")
    assert finished(episode.step("12")) == "Answer with -1, 0, 1"


def test_text_spaces_pass_text_unchanged():
    episode, first = started(3, id="test/Parrot-v0", high=2.0)
    name, request, shown = first.splitlines()
    assert (name, request) == ("test/Parrot-v0, episode 3", "Answer with 1 to 3 characters")
    assert finished(episode.step("what?")) == request and finished(episode.step(shown)) == shown
    finished(episode.step("a"))
    assert finished(episode.reward()) == 0.5


@pytest.mark.parametrize(
    ("name", "low", "high", "turns", "worth"),
    [
        ("test/Dial-v0", -1.0, 1.0, ("0", "1"), 1.0),
        ("test/Dial-v0", 0.0, 4.0, ("0", "1"), 0.25),
        ("test/Dial-v0", 1.0, 2.0, ("0", "1"), 0.0),
        ("CliffWalking-v1", -100.0, -12.0, ("hm", "", "0"), 0.0),
    ],
)
def test_reward_sum_scales_between_low_and_high(name, low, high, turns, worth):
    episode, _ = started(3, id=name, low=low, high=high)
    for turn in turns:
        finished(episode.step(turn))
    assert episode.over == (name == "test/Dial-v0") and finished(episode.reward()) == worth


CODE = '''
import gymnasium
from gymnasium import spaces


class Stairs(gymnasium.Env):
    """Up to the top."""

    replayable = True
    observation_space = spaces.Discrete(9)
    action_space = spaces.Discrete(2)

    def __init__(self, top: int = 3) -> None:
        self.top = top

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(self.top))
        return self.at, {}

    def step(self, action):
        self.at += 1 if action else -1
        over = self.at in (-1, self.top)
        return max(self.at, 0), float(self.at == self.top), over, False, {}
'''


def test_user_class_works_without_an_adapter(tmp_path):
    levels = '{ actions = ["down", "up"] }, { options = { top = 5 } }'
    specs, allowed = written(tmp_path, "stairs", CODE, levels)
    assert try_replays(specs, allowed) == Trial(("stairs",), 8)
    with Verifier(specs, allowed, outside=True) as verifier:
        (prompt,) = verifier.prompts([TaskRef("stairs", 0, 4)])
        name, request, at = prompt.splitlines()
        assert name.startswith("Stairs, episode ") and request == "Answer with down, up"
        turns = [text for n in range(int(at) + 1, 3) for text in ("up", str(n))]
        trajectory = TrajectoryTexts((*turns, "up"), truncated=False)
        assert verifier.verify(TaskRef("stairs", 0, 4), [trajectory]).rewards == (1.0,)


def test_package_class_sets_version_and_replayable():
    adapter: Any = environment_of(type("Versioned", (Dial,), {"version": "2", "replayable": False}))
    assert (adapter.version, adapter.replayable) == ("2", False)
    assert "actions: name all 3" in adapter.refusal({"actions": ["one"]})


@pytest.mark.parametrize(
    ("level", "why"),
    [
        ({}, "id is missing"),
        ({"id": "Nowhere-v0"}, "id = 'Nowhere-v0' is not registered"),
        ({"id": "os:Nowhere-v0"}, "is not registered"),
        ({"id": "CartPole-v1"}, "shows Box.*: use one that shows text or whole numbers"),
        ({"id": "LunarLander-v3"}, "cannot be made"),
        ({**LAKE, "low": 1.0}, "low = 1.0 is not below high = 1.0"),
        ({**LAKE, "actions": ["left", "right"]}, "actions: name all 4"),
        ({**LAKE, "actions": ["a", "b", "c", "A"]}, "each by another word"),
        ({**LAKE, "actions": "left"}, "actions: name all 4"),
        ({**LAKE, "options": {"desc": {}}}, "options: use numbers"),
        ({**LAKE, "options": {"desc": ["S" * 65]}}, "options: use numbers"),
        ({**LAKE, "options": {"colour": "red"}}, "cannot be made: TypeError"),
        ({**LAKE, "seed": 3}, "seed is not known"),
    ],
)
def test_open_envs_rejects_unsupported_environment(level, why):
    with pytest.raises(TaskSetError, match=f"env 'gymnasium' level 0: .*{why}"):
        open_envs([spec(level)], Allowed())
