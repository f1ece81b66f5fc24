"""The mixture at its edges: whose turn it is, what counts, and shares to the group."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from node.config.learning import MixtureSection
from swarm.mixture.mixture import Mixture
from swarm.mixture.selection import UniformSelection
from swarm.reputation import PROMISING
from tests.swarm.experience_parts import START
from tests.swarm.test_mixture import AUTHORS, EVERYBODY, groups


def minted(count: int) -> list[bytes]:
    return [b"s" * 28 + number.to_bytes(4) for number in range(count)]


def test_groups_that_teach_nothing_spare_no_own_ones() -> None:
    mixture = Mixture(MixtureSection(), 1)
    assert mixture.spared(groups(AUTHORS, rewards=(1.0, 1.0)), EVERYBODY) == 0
    assert mixture.spared(groups(AUTHORS), EVERYBODY) == 6


@pytest.mark.parametrize(("discard", "taken"), [(True, 1), (False, 2)])
def test_groups_that_teach_nothing_are_taken_only_where_they_are_not_discarded(discard, taken):
    pool = groups(AUTHORS[:1]) + groups(AUTHORS[1:2], rewards=(0.0, 0.0))
    mixture = Mixture(MixtureSection(), 1, discard=discard)
    assert len(mixture.choose(pool, 1, 2, 2, EVERYBODY)) == taken


def test_a_share_is_not_a_group_less_for_the_rounding_of_its_product() -> None:
    config = MixtureSection(
        external=50, informative=100, local=50, author_share=0.29, newcomer_share=0.57
    )
    caps = Mixture(config, 1).caps(100)
    assert (caps.author, caps.newcomers) == (29, 57), "as products they are below"


def test_shares_of_the_published_mix_are_of_own_and_external_groups() -> None:
    mixture = Mixture(
        MixtureSection(external=4, local=8, newcomer_share=0.5), 1, rule=UniformSelection
    )
    assert (mixture.caps(12).author, mixture.caps(12).newcomers) == (3, 6)
    assert mixture.caps(100) == mixture.caps(12)


def test_used_groups_of_an_author_count_towards_its_share_of_an_update() -> None:
    pool = groups(AUTHORS[:1], 6)
    pool[3:] = [replace(candidate, uses=1) for candidate in pool[3:]]
    for proven in (EVERYBODY, frozenset[bytes]()):
        chosen = Mixture(MixtureSection(), 1).choose(pool, 1, 0, 9, proven)
        assert [candidate.uses for candidate in chosen] == [0, 0, 0]


def test_beside_many_proven_authors_all_newcomers_are_drawn_as_one() -> None:
    proven = minted(9)
    pool = groups([*proven, *AUTHORS], 6)
    mixture, strangers = Mixture(MixtureSection(), 1), Counter[int]()
    for turn in range(400):
        chosen = mixture.choose(pool, turn, 8, 8, frozenset(proven))
        assert len(chosen) == 4
        strangers[sum(c.key.author in AUTHORS for c in chosen)] += 1
    assert (set(strangers), strangers[1]) == ({0, 1}, pytest.approx(400 * 4 / 10, abs=40))


def test_of_very_many_proven_authors_those_are_drawn_from_who_gave_the_newest() -> None:
    authors = minted(100)
    pool = [
        candidate
        for place, author in enumerate(authors)
        for candidate in groups([author], received=START + place)
    ]
    mixture, taken = Mixture(MixtureSection(), 1), set()
    for turn in range(60):
        taken |= {c.key.author for c in mixture.choose(pool, turn, 8, 8, frozenset(authors))}
    assert taken == set(authors[-16:]), "four times the four that there is room for"


def test_a_newcomer_is_promising_from_the_very_bound_on() -> None:
    tried = {AUTHORS[0]: PROMISING, AUTHORS[1]: PROMISING - 0.01}
    for turn in range(20):
        (first,) = Mixture(MixtureSection(), 1).choose(
            groups(AUTHORS, 3), turn, 0, 0, frozenset(), tried
        )
        assert first.key.author == AUTHORS[0]
