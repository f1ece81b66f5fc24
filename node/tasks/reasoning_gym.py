"""Families of the reasoning-gym library as questions.

Each level is one dataset object for its whole life; a question is its item at an index drawn from
the seed, since the library seeds every item with ``seed + index`` whatever came before it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from node.tasks.catalogue import CatalogueError
from node.tasks.evaluating import EVALUATING
from protocol.manifest import EnvSpec

PARTIAL = "partial_credit"


class ReasoningGym:
    """One family; level settings are keyword arguments of the family's configuration.

    Rewards are 1 for an answer that the library scores in full and else 0: its small consolation
    scores would make groups without one right answer look informative. A level that sets
    ``partial_credit = true`` keeps the library's score.
    """

    def __init__(self, family: str, datasets: Sequence[Any], partial: Sequence[bool]) -> None:
        self._datasets = tuple(datasets)
        self._partial = tuple(partial)
        self.levels = len(self._datasets)
        self.evaluates_text = family in EVALUATING

    @classmethod
    def open(cls, spec: EnvSpec, levels: Sequence[Mapping[str, Any]]) -> ReasoningGym:
        """Open the family named by ``spec.name``.

        Raises:
            CatalogueError: another version of the library is installed, the family is unknown, or
                a level's settings are refused by it.
        """
        installed = importlib.metadata.version("reasoning-gym")
        if installed != spec.version:
            raise CatalogueError(
                f"env {spec.name!r} is of reasoning-gym {spec.version}, installed is {installed}: "
                f"pip install reasoning-gym=={spec.version}"
            )
        datasets = [_dataset(spec.name, number, level) for number, level in enumerate(levels)]
        return cls(spec.name, datasets, [bool(level.get(PARTIAL, False)) for level in levels])

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """Item ``number`` of the level's dataset."""
        entry: dict[str, Any] = self._datasets[level][number]
        return {**entry, "level": level}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """The library's verdict: 1 or 0, or the partial credit where the level keeps it."""
        level = entry["level"]
        score = float(self._datasets[level].score_answer(answer, entry))
        return min(score, 1.0) if self._partial[level] else float(score >= 1.0)


def _dataset(family: str, number: int, level: Mapping[str, Any]) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if family not in DATASETS:
        raise CatalogueError(f"env {family!r} is no family of reasoning-gym: see its GALLERY.md")
    settings = {key: value for key, value in level.items() if key != PARTIAL}
    try:
        return create_dataset(family, seed=0, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise CatalogueError(f"env {family!r} level {number} {settings}: {error}") from error
