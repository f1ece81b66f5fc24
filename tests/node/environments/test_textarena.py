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
"""What the library appends to the ids of the same game with other wrappers."""
IDS = sorted(i for i in registration.ENV_REGISTRY if not i.endswith(OTHERS))
PLAYED = [i for i in IDS if Game.refusal({"game": i}) is None]  # type: ignore[attr-defined]


def spec(*games: str) -> EnvSpec:
    return parts.spec("textarena", *({"game": game} for game in games), version=Game.version)


def episode(game: str, seed: int) -> tuple[Episode, str]:
    begun = Episode(Game, seed, {"game": game})
    return begun, finished(begun.begin())


def test_every_game_of_the_library_is_played_or_refused_by_name():
    names = {game.partition("-v0")[0] for game in IDS}
    assert ALONE.isdisjoint(FORMS) and REFUSED.keys().isdisjoint(ALONE | FORMS.keys())
    assert names == ALONE | FORMS.keys() | REFUSED.keys()
    assert {game.partition("-v0")[0] for game in PLAYED} == ALONE | FORMS.keys()
    assert set(REFUSED_VARIANTS) < set(IDS) - set(PLAYED)


def test_the_version_is_of_the_library_and_of_what_makes_it_an_environment():
    assert Game.version == "0.7.4+1"
    with pytest.raises(TaskSetError, match=r"of version 0\.7\.3\+1, here is 0\.7\.4\+1"):
        open_envs([replace(spec("Nim-v0"), version="0.7.3+1")], Allowed())


def test_a_game_is_played_and_judged_in_the_worker():
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
        trajectory = TrajectoryTexts(tuple(texts[:-1]), cut=False)
        assert verifier.judge(task, [trajectory]).rewards == (moved.reward,)


@pytest.mark.parametrize("game", ["WildTicTacToe-v0", "SimpleTak-v0", "KuhnPoker-v0"])
def test_an_opponent_moves_by_the_rules_and_tells_nothing_of_its_tries(game):
    rewards = set()
    for seed in range(12):
        begun, shown = episode(game, seed)
        rng = random.Random(seed)
        while not begun.over:
            assert "invalid" not in shown
            listed = BRACKETED.findall(re.split("vailable (?:Moves|actions)", shown)[-1])
            shown = finished(begun.step(rng.choice(listed)))
        assert begun.tripped is None
        rewards.add(finished(begun.reward()))
    assert {0.0, 1.0} <= rewards <= {0.0, 0.5, 1.0}


def test_a_wrong_move_is_told_a_second_one_loses_and_a_game_that_is_cut_is_worth_nothing():
    begun, _ = episode("TicTacToe-v0", 3)
    assert "invalid move" in finished(begun.step("nowhere"))
    finished(begun.step("nowhere"))
    assert begun.over and finished(begun.reward()) == 0.0
    begun, _ = episode("2048-v0", 3)
    finished(begun.step("up"))
    assert not begun.over and finished(begun.reward()) == 0.0


def test_the_policy_sits_on_either_side_and_begins_elsewhere_for_every_seed():
    firsts = [episode("ConnectFour-v0", seed)[1] for seed in range(20)]
    assert len(set(firsts)) == 20 and any("You are Player 0" in first for first in firsts)
    assert any("You are Player 1" in first for first in firsts)


def test_only_the_last_board_is_told_and_not_what_the_policy_wrote():
    begun, first = episode("ConnectFour-v0", 4)
    assert first.count("Board state:") == 1
    answer = finished(begun.step("my choice is [col 3]"))
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
def test_what_is_not_played_is_refused_by_name_and_a_game_has_to_be_named(game, why):
    with pytest.raises(TaskSetError, match=rf"'textarena' level 1: game = '{game}'.*{why}"):
        open_envs([spec("TicTacToe-v0", game)], Allowed())
    with pytest.raises(TaskSetError, match="level 0: game is missing: reset takes game"):
        open_envs([replace(spec("Nim-v0"), levels=("{}",))], Allowed())


def test_every_game_ends_well_whatever_it_is_told():
    for game in sorted(ALONE | FORMS.keys()):
        begun, first = episode(next(i for i in PLAYED if i.partition("-v0")[0] == game), 11)
        rng, shown = random.Random(game), first
        for _ in range(12):
            if not begun.over:
                shown = finished(begun.step(guess([first, shown], rng)))
        assert begun.tripped is None, game
        assert 0.0 <= finished(begun.reward()) <= 1.0


def test_games_that_draw_at_every_step_come_out_alike_elsewhere():
    drawing = ("2048-v0", "Minesweeper-v0", "PigDice-v0", "Poker-v0", "Sokoban-v0")
    assert try_replays([spec(*drawing)], Allowed()) == Trial(("textarena",), 20)


def test_the_library_is_named_among_the_tasks_and_who_lacks_it_is_told_how_to_get_it(monkeypatch):
    (line,) = overview([spec("Nim-v0", "Sudoku-v0")], Allowed())
    assert line.endswith(": textarena (2 levels of textarena)")
    monkeypatch.setattr("node.environments.own_file.find_spec", lambda name: None)
    sources, closed = open_envs([spec("Nim-v0")], Allowed())
    assert not sources and "pip install 'swarm-node[textarena]'" in closed["textarena"]
    assert overview([spec("Nim-v0")], Allowed())[1] == closed["textarena"]
