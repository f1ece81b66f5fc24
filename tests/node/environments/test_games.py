import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.recipe.corpus import PLAYERS
from node.environments.environment import MOST_OBSERVATION, finished
from node.environments.games import SHIPPED, Maze
from node.environments.own_file import replayed
from node.tasks.sources.environments import Environments
from node.tasks.task import Task
from node.tasks.task_set import Allowed, load_task_set, open_envs
from swarm.groups import Split
from tests.node.programs import python

SOURCES = open_envs(load_task_set("games"), Allowed())[0]
LEVELS = [(name, level) for name, source in SOURCES.items() for level in range(source.levels)]
SEEDS = st.integers(0, (1 << 63) - 1)
PROMPTS = open_envs(load_task_set("starter-games"), Allowed())[0]
MARGIN = 0.25
"""Minimum reward difference between a good player and a random one."""
MOST_TURNS = 16
REWARDS = {
    "bandit": {n / 6 for n in range(7)},
    "calculator": {0.0, 1.0},
    "guess": {0.0, 1.0},
    "maze": {0.0, 0.125, 0.25, 0.375, 1.0},
    "tictactoe": {0.0, 0.5, 1.0},
}
"""Rewards over all levels of the task set, except those that only luck earns."""


def played(task: Task, kind: str, seed: int) -> tuple[list[str], float]:
    """Return the observations and actions of a player's episode, and its reward."""
    rng = random.Random(seed)
    act = getattr(PLAYERS[task.ref.env], kind)
    episode = SOURCES[task.ref.env].environment.episode(task.entry)
    seen = [finished(episode.begin())]
    while not episode.over:
        seen.append(act(seen, rng))
        seen.append(finished(episode.step(seen[-1])))
    return seen, finished(episode.reward())


def test_every_game_is_in_the_task_set_and_has_a_player():
    assert SOURCES.keys() == SHIPPED.keys() == PLAYERS.keys()


@pytest.mark.parametrize(("name", "level"), LEVELS)
@given(seed=SEEDS, moves=st.integers(0, 1 << 32), kind=st.sampled_from(["good", "any"]))
def test_replayed_game_gives_the_same_reward(name, level, seed, moves, kind):
    task = SOURCES[name].build(level, seed)
    assert SOURCES[name].build(level, seed) == task
    seen, reward = played(task, kind, moves)
    assert seen[0] == task.entry["question"]
    again = SOURCES[name].environment.episode(task.entry)
    random.seed(moves)
    assert finished(replayed(again, seen[1:-1], truncated=False)) == reward
    assert len(seen[1::2]) <= MOST_TURNS


FRESH = """
from tests.node.environments.test_games import LEVELS, SOURCES, played
for name, level in LEVELS:
    for seed in range(20):
        print(played(SOURCES[name].build(level, seed), ("good", "any")[seed % 2], seed))
"""


def test_new_process_with_another_hash_seed_plays_the_same():
    runs = (python(FRESH, env={"PYTHONHASHSEED": order}, check=True) for order in "12")
    one, other = (run.stdout for run in runs)
    assert one == other and one.count("\n") == 20 * len(LEVELS)


@pytest.mark.parametrize("name", SOURCES)
def test_players_earn_every_listed_reward(name):
    source = SOURCES[name]
    earned = {
        played(source.build(level, seed), kind, seed)[1]
        for level in range(source.levels)
        for seed in range(150)
        for kind in ("good", "any")
    }
    assert {round(each, 6) for each in earned} >= {round(each, 6) for each in REWARDS[name]}


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_good_player_beats_random_by_a_margin(name, level):
    source = SOURCES[name]
    tasks = [source.build(level, seed, Split.HELDOUT) for seed in range(100)]
    good, any_ = (fmean(played(task, kind, 1)[1] for task in tasks) for kind in ("good", "any"))
    assert good - any_ > MARGIN and good > 0.6


HOSTILE = (
    *("", "x" * 10_000_000, "\0\x1b[2J\x07", "[" * 100_000, "\ud800", "٣"),
    *("calc 9**9", "__import__('os').abort()", "9" * 5000),
)


@pytest.mark.parametrize(("name", "level"), LEVELS)
@given(actions=st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40)), max_size=20))
def test_any_action_only_returns_text_or_ends_the_episode(name, level, actions):
    source = SOURCES[name]
    episode = source.environment.episode(source.build(level, 5).entry)
    finished(episode.begin())
    for action in actions:
        if episode.over:
            break
        assert len(finished(episode.step(action))) < 100 < MOST_OBSERVATION
    assert episode.tripped is None and 0.0 <= finished(episode.reward()) <= 1.0


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_first_observations_suffice_for_a_heldout_split(name, level):
    source = SOURCES[name]
    heldout = {source.build(level, seed, Split.HELDOUT).prompt for seed in range(200)}
    trained = {source.build(level, seed).prompt for seed in range(200)}
    assert len(heldout) >= 20 and heldout.isdisjoint(trained)


def test_prompts_state_the_rules_and_one_turn_format():
    assert PROMPTS.keys() == SOURCES.keys()
    for source in PROMPTS.values():
        for level in range(source.levels):
            for split in Split:
                task = source.build(level, 7, split)
                assert task.prompt.count(task.entry["question"]) == 1
                assert task.prompt.lower().count("nothing else") == 1, task.prompt


@pytest.mark.parametrize(
    "turn", ["<think>South is closed, so n.</think>\nn", "s is closed\n</think> n", "n"]
)
def test_environment_receives_turns_without_thinking(turn):
    assert after(turn, "text") == after("n", "text") != after("<think>n</think>", "text")
    assert after(" n", "text") == after("<think>n</think>", "text"), "white space is not stripped"


@pytest.mark.parametrize("turn", ["n.", "**n**", "North, so\n<answer>n</answer>", "Answer: n"])
def test_answer_tag_setting_extracts_the_turns_answer(turn):
    assert after(turn, "answer_tag") == after("n", "text") != after(turn, "text")


def after(turn: str, extract: str) -> str:
    """Return the observation after one turn in a maze."""
    source = Environments(Maze, [{"far": 2, "moves": 4}], extract)
    episode = source.episode({"level": 0, "number": 5})
    assert "n" in finished(episode.begin()).split("open ")[1]
    return finished(episode.step(turn))
