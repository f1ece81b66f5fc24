import random
import re
from dataclasses import replace

import pytest

from node.environments.environment import Episode, finished
from node.environments.own_file import BRACKETED, LIBRARIES, guess
from node.environments.textarena import ALONE, FORMS, REFUSED, REFUSED_VARIANTS
from node.errors import TaskSetError
from node.tasks.scorer import Move
from node.tasks.task_set import Allowed, open_envs, overview
from node.tasks.verifier.replay_trial import Trial, try_replays
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from swarm.verification import TrajectoryTexts
from tests.node.environments import parts

textarena = pytest.importorskip("textarena")
registration = pytest.importorskip("textarena.envs.registration")
Game = LIBRARIES["textarena"].load()

OTHERS = ("-raw", "-train")
"""Suffixes of ids for the same game with other wrappers."""
IDS = sorted(i for i in registration.ENV_REGISTRY if not i.endswith(OTHERS))
PLAYED = [i for i in IDS if Game.refusal({"game": i}) is None]  # type: ignore[attr-defined]


def spec(*games: str) -> EnvSpec:
    return parts.spec("textarena", *({"game": game} for game in games), version=Game.version)


def episode(game: str, seed: int) -> tuple[Episode, str]:
    started = Episode(Game, seed, {"game": game})
    return started, finished(started.begin())


def test_every_library_game_is_supported_or_refused_by_name():
    names = {game.partition("-v0")[0] for game in IDS}
    assert ALONE.isdisjoint(FORMS) and REFUSED.keys().isdisjoint(ALONE | FORMS.keys())
    assert names == ALONE | FORMS.keys() | REFUSED.keys()
    assert {game.partition("-v0")[0] for game in PLAYED} == ALONE | FORMS.keys()
    assert set(REFUSED_VARIANTS) < set(IDS) - set(PLAYED)


def test_version_combines_library_and_adapter_versions():
    assert Game.version == "0.7.4+1"
    with pytest.raises(TaskSetError, match=r"of version 0\.7\.3\+1, here is 0\.7\.4\+1"):
        open_envs([replace(spec("Nim-v0"), version="0.7.3+1")], Allowed())


def test_worker_plays_and_scores_a_game():
    task = TaskRef("textarena", 0, 7)
    with Verifier([spec("GuessTheNumber-v0")], outside=True) as verifier:
        assert verifier.start() == ("textarena",)
        (prompt,) = verifier.prompts([task])
        assert prompt.startswith("Game ") and "between 1 and 20" in prompt
        texts = []
        for number in range(1, 11):
            turns = (*texts[::2], str(number))
            (moved,) = verifier.play([Move(1, task, turns, final=False)])
            texts += [str(number), moved.observation]
            if moved.over:
                break
            assert moved.observation == "The target number is higher."
        assert 0 < moved.reward <= 1
        trajectory = TrajectoryTexts(tuple(texts[:-1]), truncated=False)
        assert verifier.verify(task, [trajectory]).rewards == (moved.reward,)


@pytest.mark.parametrize("game", ["WildTicTacToe-v0", "SimpleTak-v0", "KuhnPoker-v0"])
def test_opponent_moves_legally_and_hides_its_invalid_tries(game):
    rewards = set()
    for seed in range(12):
        started, shown = episode(game, seed)
        rng = random.Random(seed)
        while not started.over:
            assert "invalid" not in shown
            listed = BRACKETED.findall(re.split("vailable (?:Moves|actions)", shown)[-1])
            shown = finished(started.step(rng.choice(listed)))
        assert started.tripped is None
        rewards.add(finished(started.reward()))
    assert {0.0, 1.0} <= rewards <= {0.0, 0.5, 1.0}


def test_second_invalid_move_loses_and_unfinished_game_earns_zero():
    started, _ = episode("TicTacToe-v0", 3)
    assert "invalid move" in finished(started.step("nowhere"))
    finished(started.step("nowhere"))
    assert started.over and finished(started.reward()) == 0.0
    started, _ = episode("2048-v0", 3)
    finished(started.step("up"))
    assert not started.over and finished(started.reward()) == 0.0


def test_seed_varies_the_player_side_and_first_observation():
    firsts = [episode("ConnectFour-v0", seed)[1] for seed in range(20)]
    assert len(set(firsts)) == 20 and any("You are Player 0" in first for first in firsts)
    assert any("You are Player 1" in first for first in firsts)


def test_observation_has_only_the_last_board_and_no_policy_text():
    started, first = episode("ConnectFour-v0", 4)
    assert first.count("Board state:") == 1
    answer = finished(started.step("my choice is [col 3]"))
    assert answer.count("Board state:") == 1 and "my choice" not in answer


@pytest.mark.parametrize(
    ("game", "why"),
    [
        ("Chess-v0", "does not parse on Python 3.11"),
        ("Wordle-v0-hardcore", "list of words"),
        ("Debate-v0", "a model on the network"),
        ("Taboo-v0-food", "three players or more"),
        ("TowerOfHanoi-v0", "the same puzzle"),
        ("Sudoku-v0-hard", "takes seconds"),
        ("Nim-v0-raw", "leave out -raw"),
        ("Nim-v1", "is not known; of version v0 there are 2048, Alquerque"),
        ("Nim-v0-nowhere", "is not known"),
    ],
)
def test_open_envs_rejects_unsupported_or_missing_game(game, why):
    with pytest.raises(TaskSetError, match=rf"'textarena' level 1: game = '{game}'.*{why}"):
        open_envs([spec("TicTacToe-v0", game)], Allowed())
    with pytest.raises(TaskSetError, match="level 0: game is missing: reset takes game"):
        open_envs([replace(spec("Nim-v0"), levels=("{}",))], Allowed())


def test_every_game_accepts_random_guesses():
    for game in sorted(ALONE | FORMS.keys()):
        started, first = episode(next(i for i in PLAYED if i.partition("-v0")[0] == game), 11)
        rng, shown = random.Random(game), first
        for _ in range(12):
            if not started.over:
                shown = finished(started.step(guess([first, shown], rng)))
        assert started.tripped is None, game
        assert 0.0 <= finished(started.reward()) <= 1.0


def test_games_random_at_every_step_pass_the_replay_check():
    drawing = ("2048-v0", "Minesweeper-v0", "PigDice-v0", "Poker-v0", "Sokoban-v0")
    assert try_replays([spec(*drawing)], Allowed()) == Trial(("textarena",), 20)


def test_overview_names_the_library_or_the_command_to_install_it(monkeypatch):
    (line,) = overview([spec("Nim-v0", "Sudoku-v0")], Allowed())
    assert line.endswith(": textarena (2 levels of textarena)")
    monkeypatch.setattr("node.environments.own_file.find_spec", lambda name: None)
    sources, closed = open_envs([spec("Nim-v0")], Allowed())
    assert not sources and "pip install '.[textarena]'" in closed["textarena"]
    assert overview([spec("Nim-v0")], Allowed())[1] == closed["textarena"]
