"""A task of one's own: put digits in order.

Install it on every machine of the swarm (``pip install ./examples/own_task``), then found the
swarm with the task set beside this file.
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
        digits = random.Random(number).sample("0123456789", self.counts[level])
        question = f"Sort these digits: {' '.join(digits)}"
        return {"question": question, "answer": "".join(sorted(digits))}

    def score(self, entry: Mapping[str, str], answer: str) -> float:
        """The share of places that hold the right digit; each one too many is a wrong place."""
        right = entry["answer"]
        return sum(map(str.__eq__, right, answer)) / max(len(right), len(answer))
