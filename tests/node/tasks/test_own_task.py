"""A user's own task, as the example has it: a package, an entry point, a catalogue."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from node.errors import CatalogueError
from node.tasks.catalogue import load_catalogue, open_catalogue
from node.tasks.verifier.verifier import Verifier
from swarm.groups import TaskRef
from tests.node.packages import declare

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "own_task"
SPECS = load_catalogue(str(EXAMPLE / "sorting.toml"))


@pytest.fixture
def installed(tmp_path, monkeypatch) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"]["swarm_node.tasks"].items()
    monkeypatch.syspath_prepend(EXAMPLE)
    declare(monkeypatch, tmp_path, name, target)


def test_the_example_is_under_forty_lines():
    assert len((EXAMPLE / "sorting_task.py").read_text().splitlines()) < 40


@pytest.mark.usefixtures("installed")
def test_the_example_is_drawn_and_scored_in_the_worker():
    with Verifier(SPECS, outside=True) as verifier:
        assert verifier.start() == ("sorting",)
        (prompt,) = verifier.prompts([TaskRef("sorting", 1, 5)])
        right = "".join(sorted(word for word in prompt.split() if word.isdigit()))
        verdict = verifier.judge(
            TaskRef("sorting", 1, 5), [right, right[:2], right * 2, right[::-1], ""]
        )
    assert len(right) == 4
    assert verdict.prompt == prompt
    assert verdict.rewards == (1.0, 0.5, 0.5, 0.0, 0.0)


@pytest.mark.usefixtures("installed")
def test_another_version_than_the_swarms_is_refused():
    with pytest.raises(CatalogueError, match="of version 2, installed is 1"):
        open_catalogue([replace(SPECS[0], version="2")], {})


@pytest.mark.usefixtures("installed")
def test_settings_that_the_task_refuses_are_named():
    with pytest.raises(CatalogueError, match=r"'sorting': sorting_task:Sorting fails: .*count"):
        open_catalogue([replace(SPECS[0], levels=("{}",))], {})


def test_without_the_package_the_node_says_what_it_cannot_serve(caplog):
    with Verifier(SPECS, outside=True) as verifier:
        assert verifier.start() == ()
    assert "env 'sorting' is not served here: install the package" in caplog.text


def test_a_package_that_does_not_say_whether_it_evaluates_text_is_refused(tmp_path, monkeypatch):
    (tmp_path / "silent.py").write_text(
        "class Silent:\n    version = '1'\n    levels = 1\n    def __init__(self, _): ...\n"
    )
    declare(monkeypatch, tmp_path, "silent", "silent:Silent")
    with pytest.raises(CatalogueError, match="evaluates_text"):
        open_catalogue([replace(SPECS[0], name="silent")], {})
