"""A task of one's own: put numbers in order.

Install it on every machine of the swarm (``pip install ./examples/own_task``), then found the
swarm with the catalogue beside this file.
"""

import random
from collections.abc import Mapping


class Sorting:
    """Questions of ``levels`` difficulties; a level's one setting is ``count``."""

    version = "1"  # raise it whenever the same number would give another question or score
    evaluates_text = False  # scoring never runs an answer as code

    def __init__(self, levels: list[dict[str, int]]) -> None:
        self.counts = [level["count"] for level in levels]
        self.levels = len(levels)

    def draw(self, level: int, number: int) -> dict[str, str]:
        """Question ``number`` of a level, the same on every machine."""
        numbers = random.Random(number).sample(range(100), self.counts[level])
        question = f"Sort from small to large: {' '.join(map(str, numbers))}"
        return {"question": question, "answer": " ".join(map(str, sorted(numbers)))}

    def score(self, entry: Mapping[str, str], answer: str) -> float:
        """1 for the right order, else 0."""
        return float(answer.split() == entry["answer"].split())
