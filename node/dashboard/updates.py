"""What updates were made of, by author."""

from __future__ import annotations

from typing import Any

import numpy as np

from node.dashboard.rounds import DIGITS, Rounds, plain_values, thinned

NAMED = 12
"""Authors that have a series of their own, those with most groups."""


def updates(rounds: Rounds, since: int, points: int) -> dict[str, Any]:
    """Groups of an update by author: this node's own, the largest authors', and those of others."""
    numbers, edges = rounds.column("round"), rounds.edges(since, points)
    authors, shown = rounds.named["authors"], numbers[edges[0] : edges[-1]]
    recent = (numbers > since) * rounds.weights()
    totals = {name: n for name, n in authors.totals(numbers, recent).items() if n > 0}
    largest = sorted(totals, key=lambda name: (-totals[name], name))[:NAMED]
    others = np.nan_to_num(rounds.column("groups_external"))
    series = {}
    for name in largest:
        groups = np.nan_to_num(authors.column(name, numbers))
        others = others - groups
        series[name] = plain_values(thinned(groups, edges, last=False), DIGITS)
    own = np.nan_to_num(rounds.column("groups_own"))
    return {
        "rounds": plain_values(thinned(numbers, edges, last=True), None) if len(shown) else [],
        "own": plain_values(thinned(own, edges, last=False), DIGITS),
        "authors": series,
        "other": plain_values(thinned(np.maximum(others, 0.0), edges, last=False), DIGITS),
    }


def levels(rounds: Rounds, since: int, points: int) -> dict[str, Any]:
    """Rewards of own completions by family and level, in the rounds that have any."""
    numbers, edges, found = rounds.column("round"), rounds.edges(since, points), []
    of = plain_values(thinned(numbers, edges, last=True), None) if len(edges) > 1 else []
    for name in sorted(rounds.named["levels"].names):
        values = thinned(rounds.named["levels"].column(name, numbers), edges, last=False)
        pairs = zip(of, plain_values(values, DIGITS), strict=True)
        known = [(number, value) for number, value in pairs if value is not None]
        env, _, level = name.rpartition("/")
        if known and level.isdecimal():
            at, rewards = zip(*known, strict=True)
            family = {"env": env, "level": int(level), "rounds": at, "reward": rewards}
            found.append(family)
    return {"families": found}
