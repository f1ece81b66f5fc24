"""Families of the task set ``starter``, in plain words and with one short answer each.

They begin where a model of a hundred million parameters sometimes succeeds, and every level is
drawn so that no fixed answer, and no piece of the question, is right more than one time in ten.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, ClassVar

from node.tasks.chain_of_thought import PARTIAL, Leveled

NAMES = ("Anna", "Ben", "Carla", "Dan", "Eva", "Finn", "Grace", "Hugo", "Ida", "Jack")
THINGS = ("apples", "books", "coins", "eggs", "flowers", "marbles", "pens", "shells", "stamps")
_WORD_LIST = """
cat dog sun red car sea tea map pen cup box hat bed arm leg egg ice key man boy sky day girl
tree bird fish book door wall room rain snow wind fire hand foot head milk farm ship bread apple
table chair house horse water river stone green white black small large happy music paper plant
sugar train cloud beach earth field glass light mouse night ocean phone school garden window
flower bridge butter camera castle circle coffee corner dinner doctor engine family finger
forest friend ground island jacket kitchen letter market minute morning mountain number orange
people picture planet pocket potato rabbit summer teacher winter
"""
WORDS = tuple(_WORD_LIST.split())
_SMALL_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_SMALL = tuple(_SMALL_NUMBERS.split())
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))


class Plain(Leveled):
    """A family whose questions have one answer each."""

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """Return a numbered question and its answer, identical on every machine."""
        rng = random.Random(f"{type(self).__name__}/{number}")
        question, answer = self.ask(rng, **self._levels[level])
        return {"question": question, "answer": answer, PARTIAL: self._partial[level]}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """Return 1 for the answer, else 0, or with partial credit by how much over half is alike.

        Any two texts are somewhat alike, so less than half earns nothing.
        """
        right = entry["answer"]
        if answer == right or not entry[PARTIAL]:
            return float(answer == right)
        # Longer ones differ anyway, and the time to compare grows with the product of the lengths.
        similarity = SequenceMatcher(None, right, answer[: 2 * len(right)], autojunk=False).ratio()
        return max(0.0, 2.0 * similarity - 1.0)

    @abstractmethod
    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        """Return a question and its answer."""


class WordProblems(Plain):
    """Things that a person gets, gives away, and packs in bags, in ``steps``."""

    settings: ClassVar = {"steps": range(1, 9), "most": range(10, 1001)}

    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        name, things = rng.choice(NAMES), rng.choice(THINGS)
        count = rng.randint(4, settings["most"])
        sentences = [f"{name} has {count} {things}."]
        for _ in range(settings["steps"]):
            sentence, count = self._step(rng, name, count, settings["most"])
            sentences.append(sentence)
        return f"{' '.join(sentences)} How many {things} does {name} have now?", str(count)

    @staticmethod
    def _step(rng: random.Random, name: str, count: int, limit: int) -> tuple[str, int]:
        roll = rng.random()
        if roll < 0.4 and count > 1:
            loss = rng.randint(1, count - 1)
            return f"{name} gives {loss} away.", count - loss
        if roll < 0.8 or limit < 20:
            gain = rng.randint(1, limit)
            return f"{name} gets {gain} more.", count + gain
        bags, per_bag = rng.randint(2, 5), rng.randint(2, max(2, limit // 10))
        return f"{name} buys {bags} bags with {per_bag} in each.", count + bags * per_bag


class NumberWords(Plain):
    """Numbers of ``digits``, written in words, that are to be written in digits."""

    settings: ClassVar = {"digits": range(2, 13)}

    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        number = rng.randrange(10 ** (settings["digits"] - 1), 10 ** settings["digits"])
        return f"Write the number {in_words(number)} in digits.", str(number)


def in_words(number: int) -> str:
    """Return a whole number from 0 to below 10^12 in words, as ``two hundred and forty-one``."""
    if number < len(_SMALL):
        return _SMALL[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_SMALL[number % 10]}" if number % 10 else "")
    size, name = next(scale for scale in _SCALES if number >= scale[0])
    quotient, remainder = divmod(number, size)
    text = f"{in_words(quotient)} {name}"
    if not remainder:
        return text
    return f"{text} {'and ' if remainder < 100 else ''}{in_words(remainder)}"


UNITS = (
    ("weeks", "days", 7),
    ("hours", "minutes", 60),
    ("days", "hours", 24),
    ("years", "months", 12),
    ("minutes", "seconds", 60),
    ("feet", "inches", 12),
    ("meters", "centimeters", 100),
    ("kilograms", "grams", 1000),
    ("miles", "yards", 1760),
)
_CHAINS = (
    ("weeks", "days", "hours"),
    ("days", "hours", "minutes"),
    ("hours", "minutes", "seconds"),
)


class UnitConversion(Plain):
    """Amounts in a large unit, with more in a small one or across two units."""

    settings: ClassVar = {
        "most": range(12, 1001),  # of the large unit
        "units": range(1, len(UNITS) + 1),  # how many of UNITS
        "parts": range(1, 4),  # 1: one amount; 2: with some of the small unit; 3: over two units
    }

    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        count = rng.randint(2, settings["most"])
        if settings["parts"] == 3:
            large, middle, small = rng.choice(_CHAINS)
            factors = {(one, other): factor for one, other, factor in UNITS}
            first, second = factors[large, middle], factors[middle, small]
            extra = rng.randint(1, first - 1)
            question = f"How many {small} are in {count} {large} and {extra} {middle}?"
            return question, str((count * first + extra) * second)
        large, small, factor = rng.choice(UNITS[: settings["units"]])
        if settings["parts"] == 1:
            return f"How many {small} are in {count} {large}?", str(count * factor)
        extra = rng.randint(1, factor - 1)
        question = f"How many {small} are in {count} {large} and {extra} {small}?"
        return question, str(count * factor + extra)


class Counting(Plain):
    """The numbers that follow in steps, up or, with ``down``, down."""

    settings: ClassVar = {"count": range(2, 21), "step": range(1, 101), "down": range(2)}

    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        count, step = settings["count"], rng.randint((settings["step"] + 1) // 2, settings["step"])
        start = rng.randint(1, 90) + (count * step if settings["down"] else 0)
        delta = -step if settings["down"] else step
        numbers = [start + delta * n for n in range(1, count + 1)]
        way = "down" if settings["down"] else "up"
        steps = f" in steps of {step}" if step > 1 else ""
        question = f"Count {way} from {start}{steps}. Write the next {in_words(count)} numbers."
        return question, ", ".join(map(str, numbers))


class SortingNumbers(Plain):
    """Numbers to be sorted, which are never given in order."""

    settings: ClassVar = {"count": range(3, 33), "most": range(20, 10_001)}

    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        numbers = rng.sample(range(1, settings["most"] + 1), settings["count"])
        request = "Sort these numbers from smallest to largest"
        return _unsorted(request, list(map(str, numbers)), list(map(str, sorted(numbers))))


class SortingWords(Plain):
    """Words to be sorted, which are never given in order."""

    settings: ClassVar = {"count": range(3, 33)}

    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        words = rng.sample(WORDS, settings["count"])
        return _unsorted("Sort these words in alphabetical order", words, sorted(words))


def _unsorted(request: str, items: Sequence[str], right: Sequence[str]) -> tuple[str, str]:
    items = [*items[1:], items[0]] if list(items) == list(right) else items
    return f"{request}: {', '.join(items)}", ", ".join(right)


class ReverseText(Plain):
    """Text of ``words`` to be written backward, letter by letter."""

    settings: ClassVar = {"words": range(1, 33)}

    def ask(self, rng: random.Random, **settings: int) -> tuple[str, str]:
        text = " ".join(rng.sample(WORDS, settings["words"]))
        return f"Write this text backward, letter by letter: {text}", text[::-1]


FAMILIES = {
    "counting": Counting,
    "number_words": NumberWords,
    "reverse_text": ReverseText,
    "sorting_numbers": SortingNumbers,
    "sorting_words": SortingWords,
    "unit_conversion": UnitConversion,
    "word_problems": WordProblems,
}
