import random
from pathlib import Path

import pytest

from node.environments.own_file import guess
from node.errors import TaskSetError
from node.tasks.task_set import NO_FILE, Allowed, load_task_set
from node.tasks.verifier.replay_trial import EPISODES, Trial, try_replays
from protocol.manifest import EnvSpec, open_manifest
from tests.node.environments.parts import written

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
NOISE = {
    "the clock": "{time.time_ns()}",
    "its address": "{id(self)}",
    "the order of a set": "{' '.join(WAYS)}",
    "the hash of a text": "{hash('door')}",
    "the system": "{os.urandom(4).hex()}",
    "episodes before it": "{len(heard)}",
}


def door(folder: Path, **says: object) -> tuple[tuple[EnvSpec, ...], Allowed]:
    plain = {"first": "", "later": "", "reward": "0.0", "replayable": True}
    return written(folder, "door", DOOR.format(**plain | says))


TOLD = (
    r"'door' level 0 has replayable = True, .* turn \d+ is answered .*, not .*: "
    "derive all its randomness from the seed, or set replayable = False"
)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        *(({"later": lie}, TOLD) for lie in NOISE.values()),
        *(({"first": NOISE[lie]}, "begins with ") for lie in ("the clock", "the order of a set")),
        ({"reward": "0.1 + time.time_ns() % 99991 / 199982"}, r"its reward is 0\.\d+, not 0\.\d+"),
        ({"reward": "2.0"}, "turn 16: reward gave 2.0: return a number from 0 to 1"),
    ],
    ids=[*NOISE, "first, the clock", "first, the order of a set", "a reward", "a reward too high"],
)
def test_replay_check_reports_hidden_randomness_and_bad_rewards(tmp_path, says, told):
    with pytest.raises(TaskSetError, match=told):
        try_replays(*door(tmp_path, **says))


@pytest.mark.parametrize("shared", ["{random.random()}", "{sorted(WAYS)}", "{len(action)}"])
def test_replay_check_accepts_deterministic_environment(tmp_path, shared):
    assert try_replays(*door(tmp_path, later=shared)) == Trial(("door",), EPISODES)


def test_replay_check_skips_unreplayable_and_names_absent_ones(tmp_path):
    specs, allowed = door(tmp_path, later=NOISE["the clock"], replayable=False)
    assert try_replays(specs, allowed) == Trial(unshared=("door",))
    specs, _ = door(tmp_path)
    assert try_replays(specs, Allowed()) == Trial(absent={"door": NO_FILE.format(name="door")})


def test_replay_check_covers_shipped_games_but_not_single_turns():
    specs = load_task_set("games")
    trial = try_replays(specs, Allowed())
    assert trial.replayed == tuple(spec.name for spec in specs)
    assert trial.episodes == EPISODES * sum(len(spec.levels) for spec in specs)
    assert try_replays(load_task_set("tiny"), Allowed()) == Trial()


CREATE = ("create", "--config", "node", "--name", "doors", "--task-set", "door.toml")


def test_create_replays_files_next_to_task_set(terminal, node):
    door(Path())
    assert terminal.json(*CREATE)["environments"]["replayed"] == ["door"]
    assert open_manifest(node.manifest.read_bytes()).catalogue[0].name == "door"
    shown = terminal.ok(*CREATE, "--out", "again.swarm")
    assert "replayed 4 episodes of door in other processes: all identical" in shown


def test_create_refuses_a_falsely_replayable_file(terminal, node):
    door(Path(), later=NOISE["its address"])
    assert "turn 1 is answered" in terminal.refuses(2, *CREATE)
    assert not node.manifest.exists()
    door(Path(), later=NOISE["its address"], replayable=False)
    assert "door is not replayable: nodes do not share its groups" in terminal.ok(*CREATE)


def test_guess_uses_displayed_options_and_calls_tools():
    rng = random.Random(1)
    shown = ["Use [up] or [col 4].\n- buy(count: int, what: str, gift: bool = false): Buy."]
    turns = {guess(shown, rng) for _ in range(200)}
    assert "[up]" in turns and any(turn.startswith("[col ") for turn in turns)
    assert any(turn.startswith("buy(count=") and "gift=" in turn for turn in turns)
    assert guess([""], rng).isdecimal()
