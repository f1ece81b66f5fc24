"""The mixture: pure, seeded, uniform over groups with an advantage."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from swarm.mixture import Mixture, MixtureConfig
from swarm.pooled_group import informative
from tests.swarm.experience_parts import pooled

rewards = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=5)
pools = st.lists(rewards, max_size=12).map(
    lambda groups: [pooled(i, r).candidate for i, r in enumerate(groups)]
)


@given(pools, st.integers(0, 6), st.integers(), st.integers(0), st.randoms())
def test_a_choice_depends_on_the_set_and_not_on_its_order(candidates, external, seed, turn, order):
    mixture = Mixture(MixtureConfig(external=external), seed)
    shuffled = list(candidates)
    order.shuffle(shuffled)
    assert mixture.choose(shuffled, turn) == mixture.choose(candidates, turn)


@given(pools, st.integers(0, 6), st.integers(0))
def test_a_choice_is_of_distinct_groups_with_advantage_as_many_as_asked_for(
    candidates, external, turn
):
    useful = [c for c in candidates if informative(c.rewards)]
    chosen = Mixture(MixtureConfig(external=external), 1).choose(candidates, turn)
    assert len(chosen) == min(external, len(useful))
    assert len({c.key for c in chosen}) == len(chosen)
    assert all(c in useful for c in chosen)


def test_every_useful_group_is_chosen_equally_often():
    candidates = [pooled(i, (0.0, 1.0)).candidate for i in range(8)]
    candidates += [pooled(i, (1.0, 1.0)).candidate for i in range(8, 12)]
    mixture = Mixture(MixtureConfig(external=4), 3)
    times = Counter(c.key.number for turn in range(2000) for c in mixture.choose(candidates, turn))
    assert set(times) == set(range(8))
    assert all(abs(count - 1000) < 150 for count in times.values())


def test_nodes_with_different_seeds_choose_differently():
    candidates = [pooled(i).candidate for i in range(30)]
    choices = [tuple(Mixture(MixtureConfig(), seed).choose(candidates, 1)) for seed in range(20)]
    assert len(set(choices)) > 15
