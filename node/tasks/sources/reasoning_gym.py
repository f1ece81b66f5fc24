"""Families of the reasoning-gym library as questions.

Each level keeps one dataset object. A question is its item at an index sampled from the seed: the
library seeds each item with ``seed + index``, whatever came before.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from reprlib import repr as short
from types import ModuleType
from typing import Any

from node.errors import TaskSetError
from node.tasks.settings import Kinds, Truth, check_settings, schema
from node.tasks.sources import propositional_logic
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

ONE_ANSWER = frozenset(
    {
        *("figlet_font", "fraction_simplification", "game_of_life_halting", "gsm_symbolic"),
        *("letter_jumble", "number_filtering", "number_sorting", "spell_backward"),
        *("time_intervals", "word_sequence_reversal", "word_sorting"),
    }
)
"""Families with one right answer whose library scorer also accepts text around or beside it."""

_NAN = re.compile(r"(?<![^\W\d_])nan[ij]?(?![^\W_])", re.IGNORECASE)

SCORERS: Mapping[str, Callable[[Mapping[str, Any], str], float]] = {
    "propositional_logic": propositional_logic.score
}
"""Scorers that replace the library's."""

_FORMAT = re.compile(
    r"\s*(?:(?:Give|Provide|Return|Report) only |(?:Respond|Reply) (?:only )?with (?:only |just )?"
    r"|Only reply with |Do not give the units)[^.?!\n]*[.]"
)
_DIGITS = re.compile(r"to a maximum of (\d{1,3}) significant digits")
_AMERICAN_DATE = re.compile(r"\b(\d\d)/(\d\d)/\d{4}\b")

MOST_CHARACTERS = 16_384  # of an answer; right ones are grids of 30 by 30 at most
PARTIAL = "partial_credit"
COPIED = "copied_answers"
_WORD = re.compile(r"[^\W_]+(?:[./:'-][^\W_]+)*")
TRIES = 32
STRIDE = 0x9E3779B1  # odd, and far: neighbors in an update differ
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
    copied: bool


class ReasoningGym:
    """One family; level settings are keyword arguments of its configuration.

    The reward is 1 for the library's full score, else 0: its small consolation scores would make
    wrong groups look informative. ``partial_credit = true`` keeps its score. With ``copied_answers
    = false``, no question has its answer in it. Families with faults are corrected: see :func:`fit`
    and ``ONE_ANSWER``.
    """

    def __init__(self, family: str, levels: Sequence[_Level], *, states_format: bool) -> None:
        self._family = family
        self._levels = tuple(levels)
        self._states_format = states_format
        self.levels = len(self._levels)
        self.evaluates_text = family in EVALUATING

    @classmethod
    def open(cls, spec: EnvSpec, levels: Sequence[Mapping[str, Any]]) -> ReasoningGym:
        """Open the family ``spec.name``; raise ``TaskSetError`` if it does not fit."""
        installed = importlib.metadata.version("reasoning-gym")
        if installed != spec.version:
            raise TaskSetError(
                f"env {spec.name!r} is of reasoning-gym {spec.version}, installed is {installed}: "
                f"pip install reasoning-gym=={spec.version}"
            )
        datasets = import_library().DATASETS
        if spec.name not in datasets:
            remedy = "Choose one of its GALLERY.md."
            raise TaskSetError(f"env {spec.name!r} is not a family of reasoning-gym. {remedy}")
        kinds = {**schema(spec.name, datasets[spec.name][1]), PARTIAL: Truth(), COPIED: Truth()}
        instances = [_open(spec.name, n, settings, kinds) for n, settings in enumerate(levels)]
        return cls(spec.name, instances, states_format=spec.extract == "text")

    def draw(self, level: int, number: int) -> Mapping[str, Any] | None:
        """Return item ``number`` modulo the number of items, or the next fit one.

        None if all ``TRIES`` items, ``STRIDE`` apart, are unfit.
        """
        level_data = self._levels[level]
        items = (level_data.dataset[(number + STRIDE * n) % level_data.items] for n in range(TRIES))
        entry = next((item for item in items if self._fit(level_data, item)), None)
        if entry is None:
            return None
        question = entry["question"]
        question = question if self._states_format else without_format(question)
        return {**entry, "question": question, "level": level}

    def _fit(self, level: _Level, entry: Mapping[str, Any]) -> bool:
        leaked = not level.copied and holds(entry["question"], str(entry["answer"]))
        return not leaked and fit(self._family, entry)

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """Return 1 or 0, or the library's score if the level keeps partial credit."""
        level = self._levels[entry["level"]]
        if len(answer) > MOST_CHARACTERS:
            return 0.0
        if scorer := SCORERS.get(self._family):
            return scorer(entry, answer)
        if self._family in ONE_ANSWER and not level.partial:
            return float(answer == entry["answer"])
        if unsolved(self._family, entry, answer):
            return 0.0
        score = float(level.dataset.score_answer(answer, entry))
        if not math.isfinite(score):
            return 0.0
        return min(score, 1.0) if level.partial else float(score >= 1.0)


def without_format(question: str) -> str:
    """Remove sentences about the form of the answer, where the prompt's template states one."""
    return _FORMAT.sub("", question).strip()


def holds(question: str, answer: str) -> bool:
    """Return whether the words and numbers of an answer stand together in a question."""
    tokens, words = (_WORD.findall(text.lower()) for text in (question, answer))
    ends = range(len(words), len(tokens) + 1) if words else ()
    return any(tokens[end - len(words) : end] == words for end in ends)


def unsolved(family: str, entry: Mapping[str, Any], answer: str) -> bool:
    """Return whether an answer solves nothing, whatever the library's scorer finds."""
    if answer == entry["answer"]:
        return False
    if _NAN.search(answer) and not _NAN.search(str(entry["answer"])):
        return True  # Some scorers find that it differs from no number.
    match family:
        case "boxnet":  # No robot moves a target.
            return "move(target" in str(_parsed(answer))
        case "coin_flip":  # A common beginning of the digits gets its full score.
            return not _close(answer, entry["answer"], Fraction(1, 10_000))
        case "decimal_arithmetic":  # It accepts 0 for 0.0006: six digits, of those asked for.
            value, digits = abs(Fraction(entry["answer"])), _DIGITS.findall(entry["question"])
            rounded = max(value, Fraction(1)) * 100 / 10 ** int(digits[0])
            return not _close(answer, entry["answer"], max(value / 100_000, rounded))
        case "game_of_life":  # It reads only the cells that it expects.
            grids = (json.dumps(_parsed(text)) for text in (answer, entry["answer"]))
            return len({grid.replace("1", "0") for grid in grids}) > 1
        case "puzzle24":  # Any four numbers get its full score.
            numbers = map(int, re.findall(r"\d+", answer))
            return sorted(numbers) != sorted(entry["metadata"]["numbers"])
        case "intermediate_integration" | "simple_integration":  # It differentiates the question.
            return "integra" in answer.lower()
    return False


def _parsed(text: str) -> Any:
    """Parse JSON; return None if it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _close(answer: str, right: str, tolerance: Fraction) -> bool:
    if not re.fullmatch(r"-?[\d.,/ ]{1,64}(?:[eE][+-]?\d\d?)?", answer, re.ASCII):
        return False
    try:
        value, expected = (Fraction(text.replace(",", "")) for text in (answer, right))
    except (ValueError, ZeroDivisionError):
        return False
    return abs(value - expected) <= tolerance


def fit(family: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a question is unambiguous, agrees with its answer and can be answered."""
    if entry.get("answer") == "":
        return False
    if family == "calendar_arithmetic":
        return _fit_calendar(entry)
    return family != "propositional_logic" or propositional_logic.fit(entry)


def _fit_calendar(entry: Mapping[str, Any]) -> bool:
    data = entry["metadata"]
    if us_date := _AMERICAN_DATE.search(entry["question"]):
        return int(us_date[2]) > 12 or us_date[1] == us_date[2]
    match data["task"]:
        case "count_business_days":  # The question names one year for both dates.
            return bool(data["start_date"][:4] == data["end_date"][:4])
        case "weekday_of_date_from_first_date":  # It does not say whether it is a leap year.
            return date.fromisoformat(data["target_date"]).month <= 2
        case "is_leap_year":  # One year in four is: as many "no" as "yes" are asked.
            return bool(data["is_leap"] or data["year"] % 4 == 1 or data["year"] % 100 == 0)
    return True


def import_library() -> ModuleType:
    with _without_charts():
        return importlib.import_module("reasoning_gym.factory")


def _open(family: str, number: int, settings: Mapping[str, Any], kinds: Kinds) -> _Level:
    check_settings(family, number, settings, kinds)
    options = {key: value for key, value in settings.items() if key not in (PARTIAL, COPIED)}
    try:
        with seeded(family, number, 0):
            dataset = import_library().create_dataset(family, seed=0, **options)
        partial, copied = settings.get(PARTIAL, False), settings.get(COPIED, True)
        return _Level(dataset, _items(dataset), partial, copied)
    except MemoryError:
        raise
    except Exception as error:
        context = f"env {family!r} level {number} {short(options)}"
        raise TaskSetError(f"{context}: {str(error) or repr(error)}") from error


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
