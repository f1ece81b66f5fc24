"""Which rounds of a long run stay where there is no room for all: ever fewer the older they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """What is looked at of a record.

    Attributes:
        round: its number.
        evaluated: whether it has a reward on held-out tasks, which few rounds have.
        size: bytes.
    """

    round: int
    evaluated: bool
    size: int


def thinned(lines: Sequence[Line | None], most: int) -> list[int]:
    """The places of the lines that stay, so that together they take ``most`` bytes.

    The newest rounds stay all of them. Of those up to twice as old every 2nd stays, of those up to
    four times as old every 4th, and so on, those preferred that were evaluated; how many are the
    newest is what ``most`` has room for. Thinning again what was thinned takes nothing out that
    thinning once would have kept for longer, and the first round of a run stays for good.

    Lines of rounds that were done again later are left out, and those that are no record (None).
    Some dozen lines are kept in any case, two for each doubling of the run's length.
    """
    kept = standing = _standing(lines)
    if not standing:
        return []
    recent = standing[-1].line.round - standing[0].line.round + 1
    while recent > 1 and sum(each.line.size for each in kept) > most:
        recent //= 2
        kept = _sample(standing, recent)
    return [each.place for each in kept]


class _Placed(NamedTuple):
    place: int
    line: Line


def _standing(lines: Sequence[Line | None]) -> list[_Placed]:
    """The lines that no later one takes the place of, in the order of rounds."""
    standing: list[_Placed] = []
    for place, line in enumerate(lines):
        if line is None:
            continue
        while standing and standing[-1].line.round >= line.round:
            standing.pop()
        standing.append(_Placed(place, line))
    return standing


def _sample(standing: Sequence[_Placed], recent: int) -> list[_Placed]:
    """One line of each stretch of rounds, whose length doubles whenever their age does."""
    newest = standing[-1].line.round
    stretches: dict[tuple[int, int], _Placed] = {}
    for each in standing:
        level = ((newest - each.line.round) // recent).bit_length()
        stretch = level, each.line.round >> level
        chosen = stretches.setdefault(stretch, each)
        if each.line.evaluated and not chosen.line.evaluated:
            stretches[stretch] = each
    return list(stretches.values())
