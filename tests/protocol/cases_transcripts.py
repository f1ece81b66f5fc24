"""Trajectories in the shipped ``guess``, as section 12 of docs/protocol.md has it played again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from node.environments.environment import Episode, finished
from node.environments.games import Guess
from node.environments.own_file import NotReplayed, replayed

NUMBER = 1234


@dataclass(frozen=True, slots=True)
class Case:
    """What is told: turns and what they were answered, and whether it was cut."""

    turns: tuple[str, ...]
    cut: bool = False
    number: int = NUMBER
    settings: dict[str, Any] = field(default_factory=lambda: {"most": 8, "tries": 4})


def first(number: int, settings: dict[str, Any]) -> str:
    """The first observation."""
    return finished(Episode(Guess, number, settings).begin())


def outcome(case: Case) -> dict[str, Any]:
    """The reward, or that it is not replayed."""
    episode = Episode(Guess, case.number, case.settings)
    try:
        return {"reward": finished(replayed(episode, case.turns, cut=case.cut))}
    except NotReplayed:
        return {"refused": "not_replayed"}


def _played(*guesses: str, number: int = NUMBER) -> tuple[str, ...]:
    """Those guesses with what they are answered, the last one without."""
    episode = Episode(Guess, number, {"most": 8, "tries": 4})
    finished(episode.begin())
    turns = [each for guess in guesses for each in (guess, finished(episode.step(guess)))]
    return tuple(turns[:-1])


LOW = int(first(NUMBER, {"most": 8, "tries": 4}).split()[2])
UPWARDS = tuple(str(LOW + n) for n in range(8))
HIDDEN = next(each for each in UPWARDS if outcome(Case((each,))).get("reward"))
FOUND = (HIDDEN,)
OTHER = [each for each in UPWARDS if each != HIDDEN][:4]

TRANSCRIPTS = {
    "found at once": Case(FOUND),
    "found at the second try": Case(_played(OTHER[0], HIDDEN)),
    "never found": Case(_played(*OTHER)),
    "what is no number costs a try": Case(_played("٣", "", "12345", HIDDEN)),
    "cut before the end": Case(_played(OTHER[0]), cut=True),
    "not said to be cut": Case(_played(OTHER[0])),
    "said to be cut at the end": Case(FOUND, cut=True),
    "another observation": Case((OTHER[0], "warmer", HIDDEN)),
    "an observation with a blank more": Case(
        (OTHER[0], f"{_played(OTHER[0], HIDDEN)[1]} ", HIDDEN)
    ),
    "a turn after the end": Case((HIDDEN, "", HIDDEN)),
    "the first turn dropped": Case(_played(OTHER[0], OTHER[1], HIDDEN)[2:]),
    "the seed of another task": Case(FOUND, number=NUMBER + 1),
    "a seed of 63 bits": Case(("500",), cut=True, number=(1 << 63) - 1),
    "another level": Case(("500",), cut=True, settings={"most": 4, "tries": 3}),
}
