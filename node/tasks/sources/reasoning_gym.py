"""Families of the reasoning-gym library as questions.

Each level keeps one dataset object. A question is its item at an index sampled from the seed: the
library seeds each item with ``seed + index``, whatever came before.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from reprlib import repr as short
from types import ModuleType
from typing import Any

from node.errors import CatalogueError
from node.tasks.settings import Kind, Truth, check_settings, schema
from node.tasks.task import seeded
from protocol.manifest import EnvSpec

EVALUATING = frozenset(
    {
        *("binary_matrix", "composite", "countdown", "intermediate_integration", "n_queens"),
        *("polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix"),
        "string_insertion",
    }
)

UNREPEATABLE = frozenset({"codeio"})
"""Families whose questions differ between processes, so peers cannot check rewards."""

PARTIAL = "partial_credit"
_INDICES = (1 << 32) - 1
_CHARTS = (
    *("matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections"),
    "mpl_toolkits.mplot3d",
)


@dataclass(frozen=True, slots=True)
class _Level:
    dataset: Any
    items: int
    partial: bool


class ReasoningGym:
    """One family; level settings are keyword arguments of its configuration.

    The reward is 1 for the library's full score, else 0: its small consolation scores would make
    wrong groups look informative. ``partial_credit = true`` keeps its score.
    """

    def __init__(self, family: str, levels: Sequence[_Level]) -> None:
        self._levels = tuple(levels)
        self.levels = len(self._levels)
        self.evaluates_text = family in EVALUATING

    @classmethod
    def open(cls, spec: EnvSpec, levels: Sequence[Mapping[str, Any]]) -> ReasoningGym:
        """Open the family ``spec.name``; raise ``CatalogueError`` if it does not fit."""
        installed = importlib.metadata.version("reasoning-gym")
        if installed != spec.version:
            raise CatalogueError(
                f"env {spec.name!r} is of reasoning-gym {spec.version}, installed is {installed}: "
                f"pip install reasoning-gym=={spec.version}"
            )
        kinds = _kinds(spec.name)
        return cls(spec.name, [_open(spec.name, n, each, kinds) for n, each in enumerate(levels)])

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """Return item ``number`` modulo the number of items."""
        chosen = self._levels[level]
        entry: dict[str, Any] = chosen.dataset[number % chosen.items]
        return {**entry, "level": level}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """Return 1 or 0, or the library's score if the level keeps partial credit."""
        level = self._levels[entry["level"]]
        score = float(level.dataset.score_answer(answer, entry))
        return min(score, 1.0) if level.partial else float(score >= 1.0)


def import_library() -> ModuleType:
    with _without_charts():
        return importlib.import_module("reasoning_gym.factory")


def _open(
    family: str, number: int, settings: Mapping[str, Any], kinds: Mapping[str, Kind]
) -> _Level:
    check_settings(family, number, settings, kinds)
    of_family = {key: value for key, value in settings.items() if key != PARTIAL}
    try:
        with seeded(family, number, 0):
            dataset = import_library().create_dataset(family, seed=0, **of_family)
        return _Level(dataset, _items(dataset), settings.get(PARTIAL, False))
    except MemoryError:
        raise
    except Exception as error:
        where = f"env {family!r} level {number} {short(of_family)}"
        raise CatalogueError(f"{where}: {error}") from error


def _kinds(family: str) -> dict[str, Kind]:
    datasets = import_library().DATASETS
    if family not in datasets:
        raise CatalogueError(f"env {family!r} is no family of reasoning-gym: see its GALLERY.md")
    return {**schema(family, datasets[family][1]), PARTIAL: Truth()}


def _items(dataset: Any) -> int:
    """Return a dataset's length: the full index range unless it stores a list."""
    try:
        dataset[_INDICES - 1]
    except IndexError:
        return len(dataset)
    return _INDICES


class _NoCharts(ModuleType):
    """Stand-in for an imported, unused module: any attribute is None."""

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _without_charts() -> Iterator[None]:
    """Block matplotlib: a dependency's unused charts cost 20 MB and a font cache."""
    missing = [] if "matplotlib" in sys.modules else _CHARTS
    sys.modules.update({name: _NoCharts(name) for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
