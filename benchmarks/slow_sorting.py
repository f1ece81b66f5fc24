"""The example's task with a score that takes its time, as tests in a container do."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sorting_task import Sorting

SECONDS = 0.005
"""Of every answer, in which no core has anything to do."""


class SlowSorting(Sorting):
    """Sorting whose score is waited for."""

    def score(self, entry: Mapping[str, str], answer: str) -> float:
        time.sleep(SECONDS)
        return super().score(entry, answer)
