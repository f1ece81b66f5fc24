"""Whoever founds a swarm is told of an environment that says it is replayable and is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from node.environments.own_file import guess
from node.errors import CatalogueError
from node.tasks.catalogue import NO_FILE, Allowed, load_catalogue, own_files
from node.tasks.verifier.replay_trial import EPISODES, Trial, try_replays
from protocol.manifest import EnvSpec, open_manifest
from tests.node.conftest import Terminal

DOOR = '''
import os
import random
import time

WAYS = set("north east south west up down".split())
heard = []


class Door:
    """Says something that may follow from more than the seed."""

    replayable = {replayable}

    def reset(self, seed: int) -> str:
        heard.append(seed)
        return f"Door {{seed % 99999}} {first}"

    def step(self, action: str) -> tuple[str, bool]:
        return f"Knock [1] or [2] {later}", False

    def reward(self) -> float:
        return {reward}
'''
TABLE = """
source = "environment"
template = "{question}"
extract = "text"
[[env]]
name = "door"
file = "door.py"
levels = [{}]
"""
LIES = {
    "the clock": "{time.time_ns()}",
    "its address": "{id(self)}",
    "the order of a set": "{' '.join(WAYS)}",
    "the hash of a text": "{hash('door')}",
    "the system": "{os.urandom(4).hex()}",
    "episodes before it": "{len(heard)}",
}


def door(
    folder: Path, *, first: str = "", later: str = "", reward: str = "0.0", replayable: bool = True
) -> tuple[tuple[EnvSpec, ...], Allowed]:
    """A catalogue in a folder, with a door that says such things."""
    code = DOOR.format(first=first, later=later, reward=reward, replayable=replayable)
    (folder / "door.py").write_text(code)
    (folder / "door.toml").write_text(TABLE)
    path = str(folder / "door.toml")
    return load_catalogue(path), Allowed(own_files(path))


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_observation_that_follows_from_more_than_the_seed_is_told(
    tmp_path: Path, lie: str
) -> None:
    what = (
        r"'door' level 0 says that it is replayable, .* turn \d+ is answered .*, not .*: "
        "let all its chance follow from the seed, or say replayable = False"
    )
    with pytest.raises(CatalogueError, match=what):
        try_replays(*door(tmp_path, later=lie))


@pytest.mark.parametrize("lie", [LIES["the clock"], LIES["the order of a set"]])
def test_a_first_observation_that_follows_from_more_than_the_seed_is_told(
    tmp_path: Path, lie: str
) -> None:
    with pytest.raises(CatalogueError, match="it begins with "):
        try_replays(*door(tmp_path, first=lie))


def test_a_reward_that_follows_from_more_than_the_seed_is_told(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"it is worth 0\.[0-9]+, not 0\.[0-9]+"):
        try_replays(*door(tmp_path, reward="time.time_ns() % 99991 / 99991"))


@pytest.mark.parametrize("shared", ["{random.random()}", "{sorted(WAYS)}", "{len(action)}"])
def test_what_follows_from_the_seed_and_the_turns_alone_is_replayed(
    tmp_path: Path, shared: str
) -> None:
    trial = try_replays(*door(tmp_path, later=shared))
    assert trial == Trial(("door",), EPISODES)


def test_what_says_that_it_is_not_replayable_is_left_alone(tmp_path: Path) -> None:
    trial = try_replays(*door(tmp_path, later=LIES["the clock"], replayable=False))
    assert trial == Trial(unshared=("door",))


def test_what_is_not_here_is_named(tmp_path: Path) -> None:
    specs, _ = door(tmp_path)
    trial = try_replays(specs, Allowed())
    assert trial == Trial(absent={"door": NO_FILE.format(name="door")})


def test_what_breaks_its_word_is_told_with_the_turn(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"cannot be played: turn 16: .*outside \[0, 1\]"):
        try_replays(*door(tmp_path, reward="2.0"))


def test_the_shipped_games_come_out_alike() -> None:
    specs = load_catalogue("games")
    trial = try_replays(specs, Allowed())
    assert trial.replayed == tuple(spec.name for spec in specs)
    assert trial.episodes == EPISODES * sum(len(spec.levels) for spec in specs)


def test_tasks_of_one_turn_are_not_played() -> None:
    assert try_replays(load_catalogue("tiny"), Allowed()) == Trial()


def test_found_tries_the_files_beside_the_catalogue(terminal: Terminal, node) -> None:
    door(Path())
    args = ("create", "--config", "node", "--name", "doors", "--catalogue", "door.toml")
    facts = terminal.json(*args)
    assert facts["environments"]["replayed"] == ["door"]
    assert open_manifest(node.manifest.read_bytes()).catalogue[0].name == "door"
    assert terminal(*args, "--out", "again.swarm") == 0
    assert "replayed 4 episodes of door in other processes: all alike" in terminal.out


def test_found_refuses_one_that_lies_and_writes_nothing(terminal: Terminal, node) -> None:
    door(Path(), later=LIES["its address"])
    args = ("create", "--config", "node", "--name", "doors", "--catalogue", "door.toml")
    assert terminal(*args) == 2
    assert "turn 1 is answered" in terminal.err and len(terminal.err.splitlines()) == 1
    assert not node.manifest.exists()
    door(Path(), later=LIES["its address"], replayable=False)
    assert terminal(*args) == 0
    assert "door says that it is not replayable" in terminal.out


def test_guesses_are_made_of_what_is_shown_and_call_tools() -> None:
    rng = random.Random(1)
    shown = ["Use [up] or [col 4].\n- buy(count: int, what: str, gift: bool = false): Buy."]
    turns = {guess(shown, rng) for _ in range(200)}
    assert "[up]" in turns and any(turn.startswith("[col ") for turn in turns)
    assert any(turn.startswith("buy(count=") and "gift=" in turn for turn in turns)
    assert guess([""], rng).isdecimal()
