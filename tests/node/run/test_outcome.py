"""What a round tells of the authors it learned from, and what their accounts are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.learner.update_stats import UpdateStats
from node.run.outcome import Outcome, earned
from tests.swarm.experience_parts import ANNA, BEN, pooled


def outcome(*external, trained: int, proven=frozenset()) -> Outcome:
    return Outcome(1, 1, (), external, UpdateStats(), None, {}, 9, trained, proven)


def test_shares_are_of_all_groups_of_the_update():
    groups = [pooled(i, author=ANNA) for i in range(3)] + [pooled(9, author=BEN)]
    done = outcome(*groups, trained=12, proven=frozenset({ANNA}))
    assert (done.author_share, done.unproven_share) == (3 / 12, 1 / 12)
    assert replace(done, proven=frozenset()).unproven_share == pytest.approx(4 / 12)
    alone = outcome(trained=2)
    assert (alone.author_share, alone.unproven_share) == (0.0, 0.0)
    nothing = outcome(trained=0)
    assert (nothing.author_share, nothing.unproven_share) == (None, None)


def test_authors_are_credited_with_what_the_learner_found_and_nothing_for_no_advantage():
    groups = [pooled(1, author=ANNA), pooled(2, (1.0, 1.0), author=BEN), pooled(3, author=BEN)]
    assert earned(groups, (0.2, 0.9, 0.0)) == [(ANNA, 0.2), (BEN, 0.0)]
