"""The mixture: pure, seeded, uniform over groups with an advantage, and no larger than wanted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.lead import PeersLead
from swarm.mixture import Mixture, MixtureConfig
from swarm.pooled_group import informative
from tests.swarm.experience_parts import START, pooled

rewards = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=5)
pools = st.lists(rewards, max_size=12).map(
    lambda groups: [pooled(i, r).candidate for i, r in enumerate(groups)]
)
configs = st.builds(
    MixtureConfig, st.integers(0, 6), st.sampled_from(["uniform", "auto"]), st.integers(1, 9)
)


@given(pools, configs, st.integers(), st.integers(0), st.integers(0, 9), st.randoms())
def test_a_choice_depends_on_the_set_and_not_on_its_order(
    candidates, config, seed, turn, own, order
):
    mixture = Mixture(config, seed)
    shuffled = list(candidates)
    order.shuffle(shuffled)
    assert mixture.choose(shuffled, turn, own) == mixture.choose(candidates, turn, own)


@given(pools, configs, st.integers(0), st.integers(0, 9))
def test_a_choice_is_of_distinct_groups_with_advantage_as_many_as_wanted(
    candidates, config, turn, own
):
    useful = [c for c in candidates if informative(c.rewards)]
    mixture = Mixture(config, 1)
    chosen = mixture.choose(candidates, turn, own)
    assert len(chosen) == min(mixture.wanted(own), len(useful))
    assert len({c.key for c in chosen}) == len(chosen)
    assert all(c in useful for c in chosen)


@given(st.integers(0, 6), st.integers(0, 40))
def test_uniform_wants_the_same_number_always(external, own):
    assert Mixture(MixtureConfig(external, "uniform"), 1).wanted(own) == external


@pytest.mark.parametrize(("own", "wanted"), [(0, 12), (5, 7), (12, 0), (30, 0)])
def test_auto_fills_an_update_with_groups_that_teach(own, wanted):
    assert Mixture(MixtureConfig(4, "auto", informative=12), 1).wanted(own) == wanted


@given(pools, st.integers(0, 9))
def test_a_node_that_shares_nothing_takes_nothing(candidates, own):
    assert Mixture(MixtureConfig(0, "auto"), 1).choose(candidates, 1, own) == []


def test_every_useful_group_is_chosen_equally_often():
    candidates = [pooled(i, (0.0, 1.0)).candidate for i in range(8)]
    candidates += [pooled(i, (1.0, 1.0)).candidate for i in range(8, 12)]
    mixture = Mixture(MixtureConfig(informative=6), 3)
    chosen = [c for turn in range(2000) for c in mixture.choose(candidates, turn, 2)]
    times = Counter(c.key.number for c in chosen)
    assert set(times) == set(range(8))
    assert all(abs(count - 1000) < 150 for count in times.values())


def test_nodes_with_different_seeds_choose_differently():
    candidates = [pooled(i).candidate for i in range(30)]
    choices = [tuple(Mixture(MixtureConfig(), seed).choose(candidates, 1, 8)) for seed in range(20)]
    assert len(set(choices)) > 15


@given(pools, st.integers(0), st.integers(1, 9))
def test_groups_that_were_used_fill_what_unused_ones_leave_free(candidates, turn, wanted):
    counted = [replace(c, uses=i % 3) for i, c in enumerate(candidates)]
    useful = sorted(c.uses for c in counted if informative(c.rewards))
    chosen = Mixture(MixtureConfig(wanted, "uniform"), 1).choose(counted, turn, 0)
    assert [c.uses for c in chosen] == useful[:wanted]


def test_a_node_ahead_of_its_peers_lives_on_its_own_experience_but_keeps_looking():
    mixture = Mixture(MixtureConfig(6, "auto", 12), 1)
    assert (mixture.spared(20), mixture.wanted(2)) == (6, 10)
    mixture.observe(-0.3, 100)
    assert (mixture.spared(20), mixture.wanted(2), mixture.wanted(12)) == (0, 1, 0)
    mixture.observe(0.1, 200)
    assert (mixture.spared(20), mixture.wanted(2)) == (6, 10)


def test_a_published_mix_takes_what_it_is_told_to_whoever_is_ahead():
    mixture = Mixture(MixtureConfig(6, "uniform"), 1)
    mixture.observe(-0.3, 100)
    assert (mixture.spared(20), mixture.spared(2), mixture.wanted(2)) == (6, 2, 6)


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 12)), max_size=30))
def test_what_peers_are_worth_lies_between_nothing_and_all_and_grows_with_their_lead(seen):
    lead, better = PeersLead(), PeersLead()
    for value, groups in seen:
        lead.observe(value, groups)
        better.observe(min(1.0, value + 0.01), groups)
        assert 0.0 <= lead.worth <= better.worth <= 1.0
    if all(value > -0.05 for value, _ in seen):
        assert lead.worth == 1.0


def test_groups_count_alike_however_they_are_spread_over_updates():
    once, twice = PeersLead(), PeersLead()
    once.observe(0.2, 10)
    twice.observe(0.2, 4)
    twice.observe(0.2, 6)
    assert once.value == pytest.approx(twice.value)


def test_from_a_rich_pool_the_default_draws_among_the_newest_groups_only():
    candidates = [pooled(i, (0.0, 1.0), received=START + i).candidate for i in range(40)]
    mixture = Mixture(MixtureConfig(6, "auto", 3), 1)
    drawn = {c.key.number for turn in range(60) for c in mixture.choose(candidates, turn, 0)}
    assert drawn == set(range(28, 40))
    published = Mixture(MixtureConfig(3, "uniform"), 1)
    drawn = {c.key.number for turn in range(60) for c in published.choose(candidates, turn, 0)}
    assert min(drawn) < 5
