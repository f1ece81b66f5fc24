"""Environments in files of the user's own, and the settings that they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import CatalogueError
from node.tasks.catalogue import Allowed, load_catalogue, open_envs, overview
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from swarm.verification import TrajectoryTexts

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_environment"
WRITTEN = (EXAMPLE / "treasure.py").read_text()
TABLE = """
source = "environment"
template = "{question}"
extract = "text"
[[env]]
name = "treasure"
file = "treasure.py"
levels = [%s]
"""


def written(folder: Path, levels: str = "{}", code: str = WRITTEN) -> tuple[EnvSpec, Allowed]:
    """A catalogue with the environment of a file, which is named in the config."""
    (folder / "treasure.py").write_text(code)
    (folder / "treasure.toml").write_text(TABLE % levels)
    (spec,) = load_catalogue(str(folder / "treasure.toml"))
    return spec, Allowed({"treasure": folder / "treasure.py"})


def test_the_example_takes_under_forty_lines_and_is_played_in_the_worker() -> None:
    assert len(WRITTEN.splitlines()) < 40
    (spec,) = load_catalogue(str(EXAMPLE / "treasure.toml"))
    allowed = Allowed({"treasure": EXAMPLE / "treasure.py"})
    with Verifier([spec], allowed, outside=True) as verifier:
        assert verifier.start() == ("treasure",)
        (prompt,) = verifier.prompts([TaskRef("treasure", 0, 1)])
        assert prompt.startswith("At house ")
        verdict = verifier.judge(TaskRef("treasure", 0, 1), [TrajectoryTexts(("w",), cut=True)])
        assert verdict.rewards[0] in (0.0, 1.0)


def test_who_lacks_the_file_is_told_and_serves_the_rest(tmp_path: Path) -> None:
    spec, _ = written(tmp_path)
    sources, closed = open_envs([spec], Allowed())
    assert not sources and "name its file under [tasks] files" in closed["treasure"]
    assert any("name its file" in line for line in overview([spec], Allowed()))


def test_a_file_that_was_changed_is_another_one(tmp_path: Path) -> None:
    spec, allowed = written(tmp_path)
    (tmp_path / "treasure.py").write_text(WRITTEN + "\n")
    with pytest.raises(CatalogueError, match=r"is of version .*: get the same file"):
        open_envs([spec], allowed)


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ("{ room = 3 }", "level 0: room is not known: reset takes rooms, turns"),
        ("{ }, { rooms = 'x' }", "level 1: rooms = 'x': reset takes int"),
        ("{ rooms = 2.5 }", "rooms = 2.5: reset takes int"),
        ("{ rooms = true }", "rooms = True: reset takes int"),
    ],
)
def test_settings_that_reset_does_not_take_are_refused(
    tmp_path: Path, levels: str, why: str
) -> None:
    with pytest.raises(CatalogueError, match=why):
        spec, allowed = written(tmp_path, levels)
        open_envs([spec], allowed)


def test_a_setting_without_a_default_is_asked_for(tmp_path: Path) -> None:
    code = WRITTEN.replace("rooms: int = 5", "rooms: int")
    spec, allowed = written(tmp_path, "{ turns = 3 }", code)
    with pytest.raises(CatalogueError, match="rooms is missing"):
        open_envs([spec], allowed)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("x = 1", "defines 0 classes with reset, step, reward"),
        ("import nowhere", "fails: ModuleNotFoundError"),
        (WRITTEN.replace("replayable", "repeats"), "does not say whether it is replayable"),
        (WRITTEN.replace("Treasure", "A") + WRITTEN.replace("Treasure", "B"), "defines 2 classes"),
    ],
    ids=["no class", "an import that fails", "not said to be replayable", "two classes"],
)
def test_a_file_that_is_no_environment_is_refused_by_name(
    tmp_path: Path, code: str, why: str
) -> None:
    spec, allowed = written(tmp_path, code=code)
    with pytest.raises(CatalogueError, match=why):
        open_envs([spec], allowed)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("guess", '{"most":1000000000000}'),
        ("maze", '{"far":100}'),
        ("tictactoe", '{"stones":5}'),
        ("calculator", '{"digits":1000000}'),
        ("bandit", '{"pulls":0}'),
    ],
)
def test_settings_of_a_hostile_founder_are_refused_when_a_task_is_built(
    name: str, settings: str
) -> None:
    spec = EnvSpec(name, "environment", "1", (settings,), "{question}", "text")
    source = open_envs([spec], Allowed())[0][name]
    with pytest.raises(ValueError, match=r"cannot draw: ValueError.*use "):
        source.build(0, 1)
