"""Playing a task by hand, and having a model play it."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from tests.node.conftest import Terminal

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_environment"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch):
    """What is typed, a line each."""
    return lambda *lines: monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))


def test_a_person_plays_until_it_is_over_and_hears_what_it_was_worth(terminal, said):
    said("0", "0", "0", "0")
    assert terminal("play", "guess", "--seed", "7") == 0
    assert terminal.out.splitlines()[1:] == ["» higher", "» higher", "reward 0.00"]
    low, high = map(int, re.findall(r"\d+", terminal.out.splitlines()[0]))
    said(*map(str, range(low, high + 1)))
    assert "reward " in terminal.ok("play", "guess", "--seed", "7", "--level", "0")


def test_who_leaves_early_is_told_what_it_was_worth_so_far(terminal, monkeypatch):
    for typed in ("", "n\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert terminal("play", "maze", "--seed", "1") == 0
        assert terminal.out.splitlines()[-1].startswith("reward so far 0.")


def test_a_family_of_one_turn_is_answered_once(terminal: Terminal, said) -> None:
    said("no", "never")
    assert terminal("play", "gcd", "--catalogue", "tiny", "--seed", "3") == 0
    assert terminal.out.startswith("» Find the Greatest") and terminal.out.endswith("reward 0.00\n")


def test_a_model_plays_and_every_turn_is_shown(terminal: Terminal) -> None:
    for family, catalogue in (("bandit", "games"), ("gcd", "tiny")):
        arguments = ("--catalogue", catalogue, "--model", "tiny-games", "--seed", "3")
        assert terminal("play", family, *arguments) == 0
        assert terminal.out.startswith("» ") and "\nreward " in terminal.out


def test_an_environment_in_a_file_is_played_where_the_file_is_named(terminal, said):
    said("w")
    catalogue = ("--catalogue", str(EXAMPLE / "treasure.toml"))
    file = ("--file", str(EXAMPLE / "treasure.py"))
    assert terminal.ok("play", "treasure", *catalogue, *file).startswith("» At house ")
    assert terminal("play", "treasure", *catalogue) == 2
    assert terminal.err == "error: 'treasure' lies in a file. Name its file with --file.\n"
    assert terminal("play", "treasure", *catalogue, "--file", "no.py") == 2
    assert terminal.err.startswith("error: --file: no.py. There is no such file")


def test_another_file_than_the_catalogue_means_is_told_without_a_word_of_levels(terminal):
    Path("other.py").write_text("")
    catalogue = ("--catalogue", str(EXAMPLE / "treasure.toml"))
    terminal.refuses(1, "play", "treasure", *catalogue, "--file", "other.py")
    assert "other.py" in terminal.err and "evel" not in terminal.err


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("guesses",), 2, "FAMILY: guesses. The catalogue has: guess, maze"),
        (("guess", "--level", "9"), 2, "--level: 9. Levels begin at 0; this family has 2."),
        (("guess", "--catalogue", "game"), 1, "no catalogue 'game'"),
        (("guess", "--model", "nowhere/at-all"), 2, "policy.model"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line(terminal, arguments, status, why):
    assert terminal("play", *arguments) == status
    assert why in terminal.err and len(terminal.err.splitlines()) == 1
