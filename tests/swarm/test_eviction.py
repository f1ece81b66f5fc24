"""Eviction: the limits hold, floods push out their own, and proven authors stay."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.groups import GroupKey
from swarm.pool import Held, PoolLimits, over_limits
from tests.swarm.experience_parts import ANNA, BEN

held_groups = st.lists(
    st.builds(
        Held,
        st.builds(GroupKey, st.sampled_from([ANNA, BEN, b"\xcc" * 32]), st.just(1), st.integers(0)),
        st.integers(0, 1),
        st.floats(0, 10),
        st.integers(1, 100),
    ),
    unique_by=lambda h: h.key,
    max_size=30,
)


some_proven = st.frozensets(st.sampled_from([ANNA, BEN]))


@given(held_groups, st.integers(1, 20), st.integers(1, 1000), some_proven, st.randoms())
def test_eviction_keeps_both_limits_and_does_not_depend_on_order(held, groups, size, proven, order):
    limits = PoolLimits(groups, size)
    dropped = over_limits(held, limits, proven)
    kept = [h for h in held if h.key not in dropped]
    assert len(kept) <= groups
    assert sum(h.size for h in kept) <= size
    shuffled = list(held)
    order.shuffle(shuffled)
    assert over_limits(shuffled, limits, proven) == dropped


@given(held_groups, st.integers(1, 20), some_proven)
def test_eviction_drops_no_more_than_needed(held, groups, proven):
    dropped = over_limits(held, PoolLimits(groups, 10**9), proven)
    assert len(dropped) == max(0, len(held) - groups)


@given(held_groups, st.integers(1, 20), some_proven)
def test_proven_authors_lose_nothing_while_newcomers_hold_more_than_their_share(
    held, groups, proven
):
    dropped = over_limits(held, PoolLimits(groups, 10**9), proven)
    kept = [h for h in held if h.key not in dropped]
    if any(key.author in proven for key in dropped):
        assert sum(h.key.author not in proven for h in kept) <= groups / 4


def test_chance_and_no_choice_of_keys_decides_between_newcomers_in_a_full_pool():
    held = [Held(GroupKey(bytes([n]) * 32, 1, 0), 1, 0.0, 1) for n in range(200)]
    kept = Counter[int]()
    for salt in range(40):
        limits = PoolLimits(100, 1000, salt=salt.to_bytes(2))
        gone = {key.author[0] for key in over_limits(held, limits)}
        kept.update(n for n in range(200) if n not in gone)
    assert sum(kept[n] for n in range(100)) == pytest.approx(2000, abs=150)
