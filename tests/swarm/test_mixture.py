"""Batch composition: pure, seeded, fair to authors, and bounded per author."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.learning import MixtureSection
from swarm.groups import Candidate, informative
from swarm.mixture import AutoSelection, Mixture, Selection, UniformSelection
from swarm.peer_advantage import OWN, Earned, PeerAdvantage
from swarm.reputation import PROMISING
from tests.swarm.experience_parts import START, pooled

AUTHORS = [bytes([number]) * 32 for number in range(1, 9)]
ALL = frozenset(AUTHORS)
rewards = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=5)
pools = st.lists(st.tuples(st.sampled_from(AUTHORS), rewards), max_size=30).map(
    lambda groups: [
        replace(pooled(i, r, author=author).candidate, uses=i % 2)
        for i, (author, r) in enumerate(groups)
    ]
)
shares = st.sampled_from([0.1, 0.25, 0.5, 1.0])
configs = st.builds(
    MixtureSection,
    external=st.integers(0, 8),
    target_groups=st.integers(1, 12),
    local=st.integers(0, 8),
    author_share=shares,
    unproven_share=shares,
)
rules = st.sampled_from([UniformSelection, AutoSelection])
proven_authors = st.frozensets(st.sampled_from(AUTHORS))


@pytest.fixture
def mixture() -> Mixture:
    return Mixture(MixtureSection(), 1)


def sybils(count: int) -> list[bytes]:
    return [b"s" * 28 + number.to_bytes(4) for number in range(count)]


def groups(authors, each: int = 1, **options) -> list[Candidate]:
    return [pooled(i, author=a, **options).candidate for a in authors for i in range(each)]


def ruled(
    config: MixtureSection, rule: type[Selection], *rounds: list[Earned], seed: int = 1
) -> Mixture:
    peers = PeerAdvantage()
    for earned in rounds:
        peers.observe(earned, ALL)
    return Mixture(config, seed, rule(config, peers))


mixtures = st.builds(ruled, configs, rules, seed=st.integers())


@given(pools, mixtures, st.integers(0), st.integers(0, 9), proven_authors, st.data())
def test_selection_does_not_depend_on_group_order(candidates, mixture, turn, local, proven, data):
    shuffled = data.draw(st.permutations(candidates))
    chosen = mixture.choose(candidates, turn, local, local, proven)
    assert mixture.choose(shuffled, turn, local, local, proven) == chosen
    assert mixture.replaced(shuffled, proven) == mixture.replaced(candidates, proven)


def capped(mixture: Mixture, candidates, size: int, proven) -> int:
    """Count in another way the groups that the caps of an update of ``size`` allow."""
    caps = mixture.caps(size)
    counts = Counter(c.key.author for c in candidates if informative(c.rewards))
    bounded = {author: min(count, caps.author) for author, count in counts.items()}
    unknown = sum(n for author, n in bounded.items() if author not in proven)
    return sum(n for a, n in bounded.items() if a in proven) + min(unknown, caps.unproven)


def assert_within_caps(authors: Counter[bytes], config: MixtureSection, size: int, proven) -> None:
    """Check the numbers of groups by author in an update of ``size`` groups."""
    unknown = sum(count for author, count in authors.items() if author not in proven)
    assert max(authors.values(), default=0) <= max(1, config.author_share * size)
    assert unknown <= max(1, config.unproven_share * size)


@given(pools, configs, rules, st.integers(0), st.integers(0, 9), proven_authors)
def test_selection_caps_author_and_unproven_shares_and_fills_the_update(
    candidates, config, rule, turn, local, proven
):
    mixture = ruled(config, rule)
    chosen = mixture.choose(candidates, turn, local, local, proven)
    assert len({c.key for c in chosen}) == len(chosen) <= mixture.wanted(local)
    assert all(c in candidates and informative(c.rewards) for c in chosen)
    size = local + len(chosen)
    assert_within_caps(Counter(c.key.author for c in chosen), config, size, proven)
    for larger in range(size + 1, local + mixture.wanted(local) + 1):
        assert local + capped(mixture, candidates, larger, proven) < larger


chosen_authors = st.lists(st.sampled_from(AUTHORS), max_size=12)


@given(chosen_authors, configs, rules, st.integers(0, 9), proven_authors)
def test_reduced_selection_still_respects_the_share_caps(authors, config, rule, local, proven):
    places = ruled(config, rule).within(authors, local, proven)
    final = [authors[place] for place in places]
    assert_within_caps(Counter(final), config, local + len(final), proven)
    assert bool(final) == bool(authors)


def test_author_with_256_groups_gets_no_more_than_other_authors():
    mallory, honest = AUTHORS[0], AUTHORS[1:6]
    pool = groups([mallory], 256, received=START + 9) + groups(honest, 6)
    for proven in (ALL, frozenset(honest)):
        taken: Counter[bytes] = Counter()
        for turn in range(60):
            chosen = Mixture(MixtureSection(), 1).choose(pool, turn, 2, 2, proven)
            assert len(chosen) == 10
            taken.update(c.key.author for c in chosen)
        assert taken[mallory] <= 60 * 10 / 6 + 10


@pytest.mark.parametrize(("local", "taken"), [(0, 1), (2, 1), (6, 2), (9, 3), (30, 3)])
@pytest.mark.parametrize("proven", [frozenset(), ALL])
def test_single_author_is_capped_at_25_percent_per_update(local, taken, proven):
    flood = groups(AUTHORS[:1], 256)
    assert len(Mixture(MixtureSection(), 1).choose(flood, 1, 0, local, proven)) == taken


@pytest.mark.parametrize(("trusted", "taken"), [(AUTHORS[:1], 9), ([], 1)])
def test_trusted_peer_may_exceed_the_single_author_cap(trusted, taken):
    mixture, allowed = Mixture(MixtureSection(), 1), frozenset(trusted)
    chosen = mixture.choose(groups(AUTHORS[:1], 40), 1, 3, 3, allowed, trusted=allowed)
    assert len(chosen) == taken
    assert len(mixture.within(AUTHORS[:1] * 9, 3, allowed, allowed)) == taken
    assert mixture.replaced(groups(AUTHORS[:1], 40), ALL, allowed) == (6 if trusted else 2)


@given(pools, configs, rules, st.integers(0, 9), proven_authors)
def test_trusted_peer_does_not_change_the_caps_on_others(candidates, config, rule, local, proven):
    friend, mixture = AUTHORS[0], ruled(config, rule)
    known = proven | {friend}
    chosen = mixture.choose(candidates, 1, local, local, known, trusted=frozenset({friend}))
    others = Counter(c.key.author for c in chosen if c.key.author != friend)
    assert len(chosen) <= mixture.wanted(local)
    assert_within_caps(others, config, local + len(chosen), known)


@pytest.mark.parametrize("rule", [AutoSelection, UniformSelection])
@pytest.mark.parametrize("keys", [1, 100, 1000])
def test_many_sybil_keys_get_no_more_than_one_unproven_author(rule, keys):
    honest = AUTHORS[:5]
    pool = groups(honest, 6) + groups(sybils(keys), 6, received=START + 9)
    mixture = ruled(MixtureSection(external=6), rule)
    gained = total = 0
    for turn in range(20):
        chosen = mixture.choose(pool, turn, 2, 2, frozenset(honest))
        total += len(chosen)
        gained += sum(c.key.author not in honest for c in chosen)
    assert gained <= total / 5


def test_unproven_authors_alone_replace_no_local_groups(mixture) -> None:
    unknown = groups(sybils(300), 6)
    assert mixture.replaced(unknown, frozenset()) == 0
    assert len(mixture.choose(unknown, 1, 8, 8, frozenset())) == 2
    assert len(mixture.choose(unknown, 1, 0, 0, frozenset())) == 1


def test_only_usable_proven_groups_replace_local_groups(mixture) -> None:
    pool = groups(AUTHORS[:1], 50) + groups(AUTHORS[1:2], 1) + groups(AUTHORS[2:], 9)
    assert mixture.replaced(pool, frozenset(AUTHORS[:2])) == 3
    assert mixture.replaced([replace(c, uses=1) for c in pool], frozenset(AUTHORS[:2])) == 0
    assert mixture.replaced(groups(AUTHORS, rewards=(1.0, 1.0)), ALL) == 0
    assert mixture.replaced(groups(AUTHORS), ALL) == 6


def test_unproven_authors_are_tried_equally_often():
    pool = groups(AUTHORS[:4], 1) + groups(AUTHORS[4:], 40)
    mixture, tried = Mixture(MixtureSection(), 1), Counter[bytes]()
    for turn in range(800):
        tried.update(c.key.author for c in mixture.choose(pool, turn, 8, 8, frozenset()))
    assert set(tried) == ALL
    assert all(abs(count - 200) < 60 for count in tried.values())


def test_useful_and_untried_authors_alternate_and_useless_ones_come_last():
    pool, order = groups(AUTHORS, 3), []
    tried = {AUTHORS[0]: 0.4, AUTHORS[1]: 1.2, AUTHORS[2]: 0.0}
    for turn in range(50):
        order.append(Mixture(MixtureSection(), 1).choose(pool, turn, 0, 0, frozenset(), tried))
    taken = Counter(c.key.author for (c,) in order)
    assert taken.keys() == {AUTHORS[1], *AUTHORS[3:]} and 15 < taken[AUTHORS[1]] < 35
    rest = [c for c in pool if c.key.author not in AUTHORS[1:]]
    (last,) = Mixture(MixtureSection(), 1).choose(rest, 1, 0, 0, frozenset(), tried)
    assert last.key.author == AUTHORS[0]


def test_honest_author_among_200_sybil_keys_is_found_and_kept():
    ben, mixture, tried, turns = AUTHORS[0], Mixture(MixtureSection(), 1), {}, []
    for turn in range(110):
        chosen = mixture.choose(groups([ben, *sybils(200)], 6), turn, 8, 8, frozenset(), tried)
        turns.append([c.key.author == ben for c in chosen])
        for each in chosen:
            author = each.key.author
            tried[author] = tried.get(author, 0.0) + float(author == ben)
    found_at = next(turn for turn, bens in enumerate(turns) if any(bens))
    assert found_at <= 100
    assert all(map(any, turns[found_at:]))


@given(st.integers(0, 6), st.integers(0, 40))
def test_uniform_rule_requests_a_fixed_count(external, local):
    assert ruled(MixtureSection(external=external), UniformSelection).wanted(local) == external


@pytest.mark.parametrize(
    ("external", "local", "wanted"), [(4, 0, 12), (4, 5, 7), (4, 12, 0), (4, 30, 0), (0, 5, 0)]
)
def test_auto_rule_fills_updates_to_target_groups(external, local, wanted):
    assert Mixture(MixtureSection(external=external, target_groups=12), 1).wanted(local) == wanted


@given(pools, st.integers(0, 9))
def test_external_zero_selects_no_peer_groups(candidates, local):
    assert Mixture(MixtureSection(external=0), 1).choose(candidates, 1, local, local, ALL) == []


def test_informative_groups_are_chosen_equally_often():
    candidates = [pooled(i, (0.0, 1.0), author=AUTHORS[i % 4]).candidate for i in range(8)]
    candidates += [pooled(i, (1.0, 1.0), author=AUTHORS[0]).candidate for i in range(8, 12)]
    mixture = Mixture(MixtureSection(target_groups=6), 3)
    chosen = [c for turn in range(2000) for c in mixture.choose(candidates, turn, 2, 2, ALL)]
    times = Counter(c.key.number for c in chosen)
    assert set(times) == set(range(8))
    assert all(abs(count - 1000) < 150 for count in times.values())


def test_nodes_with_different_seeds_choose_differently():
    pool = groups(AUTHORS, 4)
    mixtures = [Mixture(MixtureSection(), seed) for seed in range(20)]
    assert len({tuple(each.choose(pool, 1, 8, 8, ALL)) for each in mixtures}) > 15


@given(pools, st.integers(0), st.integers(1, 9))
def test_used_groups_fill_the_slots_that_unused_groups_leave(candidates, turn, wanted):
    counted = [replace(c, uses=i % 3) for i, c in enumerate(candidates)]
    useful = sorted(c.uses for c in counted if informative(c.rewards))
    config = MixtureSection(external=wanted, author_share=1.0)
    chosen = ruled(config, UniformSelection).choose(counted, turn, 0, wanted, ALL)
    assert [c.uses for c in chosen] == useful[:wanted]


def history(advantage: float) -> list[Earned]:
    """Return local groups, and groups of all peers with more reward by this much."""
    local = [Earned(OWN, "sums", 0, (0.0, 1.0)) for _ in range(40)]
    rewards = 0.5 + advantage, 0.5 + advantage, advantage + 0.5 + 1e-9
    others = [Earned(author, "sums", 0, rewards) for author in AUTHORS]
    return local + 40 * others


def test_node_ahead_uses_local_groups_and_still_samples_one_peer_group():
    config, pool = MixtureSection(external=6, target_groups=12), groups(AUTHORS, 2)
    pasts = [], [history(-0.3)], [history(-0.3), *100 * [history(0.1)]]
    mixtures = [ruled(config, AutoSelection, *past) for past in pasts]
    taken = [(m.replaced(pool, ALL), m.wanted(2), m.wanted(12)) for m in mixtures]
    assert taken == [(6, 10, 0), (0, 1, 0), (6, 10, 0)]


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=64)), st.floats(-0.2, 0.2))
def test_unproven_groups_do_not_change_the_selection(rewards, advantage):
    extra = [Earned(bytes([n]) * 32, "sums", 0, each) for n, each in enumerate(rewards, 100)]
    pasts = history(advantage), [*extra, *history(advantage)]
    mixtures = [ruled(MixtureSection(), AutoSelection, past) for past in pasts]
    taken = [(m.wanted(2), m.replaced(groups(AUTHORS, 2), ALL)) for m in mixtures]
    assert taken[0] == taken[1]


def test_uniform_rule_ignores_the_peer_reward_advantage():
    mixture = ruled(MixtureSection(external=6), UniformSelection, history(-0.3))
    replaced = [mixture.replaced(pool, ALL) for pool in (groups(AUTHORS), groups(AUTHORS[:2]))]
    assert (*replaced, mixture.wanted(2)) == (6, 2, 6)


def test_auto_rule_selects_only_the_newest_groups_from_a_large_buffer():
    pool = [pooled(i, author=AUTHORS[i % 4], received=START + i).candidate for i in range(80)]
    mixture = Mixture(MixtureSection(external=6, target_groups=8), 1)
    turns = range(60)
    numbers = {c.key.number for t in turns for c in mixture.choose(pool, t, 0, 0, ALL)}
    assert numbers == set(range(48, 80))
    published = ruled(MixtureSection(external=3), UniformSelection)
    numbers = {c.key.number for t in turns for c in published.choose(pool, t, 0, 5, ALL)}
    assert min(numbers) < 5


def test_author_with_older_groups_is_selected_despite_a_flood():
    anna, flo = AUTHORS[:2]
    pool = groups([anna], 2) + groups([flo], 200, received=START + 60)
    chosen = Mixture(MixtureSection(), 1).choose(pool, 1, 8, 8, frozenset({anna, flo}))
    assert {c.key.author for c in chosen} == {anna, flo}


@pytest.mark.parametrize(("discard", "taken"), [(True, 1), (False, 2)])
def test_uninformative_groups_are_selected_only_if_not_discarded(discard, taken):
    pool = groups(AUTHORS[:1]) + groups(AUTHORS[1:2], rewards=(0.0, 0.0))
    mixture = Mixture(MixtureSection(), 1, discard=discard)
    assert len(mixture.choose(pool, 1, 2, 2, ALL)) == taken


def test_caps_avoid_rounding_down_and_uniform_caps_use_configured_sizes():
    sizes = {"external": 50, "target_groups": 100, "local": 50}
    config = MixtureSection(**sizes, author_share=0.29, unproven_share=0.57)
    caps = Mixture(config, 1).caps(100)
    assert (caps.author, caps.unproven) == (29, 57), "the float products are just below 29 and 57"
    mixture = ruled(MixtureSection(external=4, local=8, unproven_share=0.5), UniformSelection)
    assert (mixture.caps(12).author, mixture.caps(12).unproven) == (3, 6)
    assert mixture.caps(100) == mixture.caps(12)


def test_used_groups_count_toward_the_author_share() -> None:
    pool = groups(AUTHORS[:1], 6)
    pool[3:] = [replace(candidate, uses=1) for candidate in pool[3:]]
    for proven in (ALL, frozenset[bytes]()):
        chosen = Mixture(MixtureSection(), 1).choose(pool, 1, 0, 9, proven)
        assert [candidate.uses for candidate in chosen] == [0, 0, 0]


def test_all_unproven_authors_count_as_one_in_the_selection() -> None:
    proven = sybils(9)
    pool = groups([*proven, *AUTHORS], 6)
    mixture, unknown = Mixture(MixtureSection(), 1), Counter[int]()
    for turn in range(400):
        chosen = mixture.choose(pool, turn, 8, 8, frozenset(proven))
        assert len(chosen) == 4
        unknown[sum(c.key.author in AUTHORS for c in chosen)] += 1
    assert (set(unknown), unknown[1]) == ({0, 1}, pytest.approx(400 * 4 / 10, abs=40))


def test_selection_uses_only_the_16_authors_with_the_newest_groups() -> None:
    authors = sybils(100)
    pool = [groups([author], received=START + n)[0] for n, author in enumerate(authors)]
    mixture, taken = Mixture(MixtureSection(), 1), set()
    for turn in range(60):
        taken |= {c.key.author for c in mixture.choose(pool, turn, 8, 8, frozenset(authors))}
    assert taken == set(authors[-16:]), "four times the four that fit"


def test_author_at_the_threshold_is_promising() -> None:
    tried = dict.fromkeys(AUTHORS, PROMISING - 0.01) | {AUTHORS[0]: PROMISING}
    pool = groups(AUTHORS, 3)
    for turn in range(20):
        (first,) = Mixture(MixtureSection(), 1).choose(pool, turn, 0, 0, frozenset(), tried)
        assert first.key.author == AUTHORS[0]


def test_promising_author_does_not_displace_untried_authors() -> None:
    stuck = AUTHORS[0]
    pool, tried, firsts = groups(AUTHORS, 3), {stuck: PROMISING}, Counter[bytes]()
    for turn in range(200):
        (first,) = Mixture(MixtureSection(), 1).choose(pool, turn, 0, 0, frozenset(), tried)
        firsts[first.key.author] += 1
    assert firsts[stuck] == pytest.approx(100, abs=30) and firsts.keys() == set(AUTHORS)
