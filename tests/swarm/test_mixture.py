"""The mixture: pure, seeded, fair between authors, bounded for each and for newcomers together."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.learning import MixtureSection
from swarm.groups import Candidate, informative
from swarm.mixture import AutoSelection, Mixture, UniformSelection
from swarm.peer_advantage import OWN, Earned
from swarm.reputation import PROMISING
from tests.swarm.experience_parts import START, pooled

AUTHORS = [bytes([number]) * 32 for number in range(1, 9)]
EVERYBODY = frozenset(AUTHORS)
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


def minted(count: int) -> list[bytes]:
    return [b"s" * 28 + number.to_bytes(4) for number in range(count)]


def groups(authors, each: int = 1, **options) -> list[Candidate]:
    return [pooled(i, author=a, **options).candidate for a in authors for i in range(each)]


mixtures = st.builds(Mixture, configs, st.integers(), rule=rules)


@given(pools, mixtures, st.integers(0), st.integers(0, 9), proven_authors, st.data())
def test_a_choice_depends_on_the_set_not_its_order(candidates, mixture, turn, own, proven, data):
    shuffled = data.draw(st.permutations(candidates))
    chosen = mixture.choose(candidates, turn, own, own, proven)
    assert mixture.choose(shuffled, turn, own, own, proven) == chosen
    assert mixture.spared(shuffled, proven) == mixture.spared(candidates, proven)


def most(mixture: Mixture, candidates, size: int, proven) -> int:
    """Groups that the caps of an update of ``size`` let through, counted another way."""
    caps = mixture.caps(size)
    held = Counter(c.key.author for c in candidates if informative(c.rewards))
    bounded = {author: min(count, caps.author) for author, count in held.items()}
    strangers = sum(n for author, n in bounded.items() if author not in proven)
    return sum(n for a, n in bounded.items() if a in proven) + min(strangers, caps.unproven)


@given(pools, configs, rules, st.integers(0), st.integers(0, 9), proven_authors)
def test_no_author_and_not_the_newcomers_together_exceed_their_share_and_the_rest_is_taken(
    candidates, config, rule, turn, own, proven
):
    mixture = Mixture(config, 1, rule=rule)
    chosen = mixture.choose(candidates, turn, own, own, proven)
    assert len({c.key for c in chosen}) == len(chosen) <= mixture.wanted(own)
    assert all(c in candidates and informative(c.rewards) for c in chosen)
    size = own + len(chosen)
    authors = Counter(c.key.author for c in chosen)
    strangers = sum(count for author, count in authors.items() if author not in proven)
    assert max(authors.values(), default=0) <= max(1, config.author_share * size)
    assert strangers <= max(1, config.unproven_share * size)
    for larger in range(size + 1, own + mixture.wanted(own) + 1):
        assert own + most(mixture, candidates, larger, proven) < larger


chosen_authors = st.lists(st.sampled_from(AUTHORS), max_size=12)


@given(chosen_authors, configs, rules, st.integers(0, 9), proven_authors)
def test_a_choice_that_shrank_keeps_to_the_caps_of_the_rest(authors, config, rule, own, proven):
    kept = [authors[place] for place in Mixture(config, 1, rule=rule).within(authors, own, proven)]
    size = own + len(kept)
    strangers = sum(author not in proven for author in kept)
    assert max(Counter(kept).values(), default=0) <= max(1, config.author_share * size)
    assert strangers <= max(1, config.unproven_share * size)
    assert bool(kept) == bool(authors)


def test_mallory_with_one_key_and_256_groups_gets_what_any_other_author_gets():
    mallory, honest = AUTHORS[0], AUTHORS[1:6]
    pool = groups([mallory], 256, received=START + 9) + groups(honest, 6)
    for proven in (EVERYBODY, frozenset(honest)):
        taken: Counter[bytes] = Counter()
        for turn in range(60):
            chosen = Mixture(MixtureSection(), 1).choose(pool, turn, 2, 2, proven)
            assert len(chosen) == 10
            taken.update(c.key.author for c in chosen)
        assert taken[mallory] <= 60 * 10 / 6 + 10


@pytest.mark.parametrize(("own", "taken"), [(0, 1), (2, 1), (6, 2), (9, 3), (30, 3)])
@pytest.mark.parametrize("proven", [frozenset(), EVERYBODY])
def test_one_author_with_a_full_pool_gets_a_quarter_of_an_update_and_no_more(own, taken, proven):
    flood = groups(AUTHORS[:1], 256)
    assert len(Mixture(MixtureSection(), 1).choose(flood, 1, 0, own, proven)) == taken


@pytest.mark.parametrize(("trusted", "taken"), [(AUTHORS[:1], 9), ([], 1)])
def test_a_trusted_peer_fills_the_room_that_one_peer_alone_may_not(trusted, taken):
    mixture, allowed = Mixture(MixtureSection(), 1), frozenset(trusted)
    chosen = mixture.choose(groups(AUTHORS[:1], 40), 1, 3, 3, allowed, trusted=allowed)
    assert len(chosen) == taken
    assert len(mixture.within(AUTHORS[:1] * 9, 3, allowed, allowed)) == taken
    assert mixture.spared(groups(AUTHORS[:1], 40), EVERYBODY, allowed) == (6 if trusted else 2)


@given(pools, configs, rules, st.integers(0, 9), proven_authors)
def test_beside_a_trusted_peer_all_others_keep_their_shares(candidates, config, rule, own, proven):
    friend, mixture = AUTHORS[0], Mixture(config, 1, rule=rule)
    known = proven | {friend}
    chosen = mixture.choose(candidates, 1, own, own, known, trusted=frozenset({friend}))
    others = Counter(c.key.author for c in chosen if c.key.author != friend)
    strangers = sum(count for author, count in others.items() if author not in known)
    size = own + len(chosen)
    assert len(chosen) <= mixture.wanted(own)
    assert max(others.values(), default=0) <= max(1, config.author_share * size)
    assert strangers <= max(1, config.unproven_share * size)


@pytest.mark.parametrize("rule", [AutoSelection, UniformSelection])
@pytest.mark.parametrize("keys", [1, 100, 1000])
def test_however_many_keys_sybil_mints_all_of_them_weigh_what_one_newcomer_does(rule, keys):
    honest = AUTHORS[:5]
    pool = groups(honest, 6) + groups(minted(keys), 6, received=START + 9)
    mixture = Mixture(MixtureSection(external=6), 1, rule=rule)
    bought = total = 0
    for turn in range(20):
        chosen = mixture.choose(pool, turn, 2, 2, frozenset(honest))
        total += len(chosen)
        bought += sum(c.key.author not in honest for c in chosen)
    assert bought <= total / 5


def test_a_node_among_strangers_alone_generates_as_if_nobody_were_there(mixture) -> None:
    strangers = groups(minted(300), 6)
    assert mixture.spared(strangers, frozenset()) == 0
    assert len(mixture.choose(strangers, 1, 8, 8, frozenset())) == 2
    assert len(mixture.choose(strangers, 1, 0, 0, frozenset())) == 1


def test_only_what_proven_authors_could_really_give_spares_own_groups(mixture) -> None:
    pool = groups(AUTHORS[:1], 50) + groups(AUTHORS[1:2], 1) + groups(AUTHORS[2:], 9)
    assert mixture.spared(pool, frozenset(AUTHORS[:2])) == 3
    assert mixture.spared([replace(c, uses=1) for c in pool], frozenset(AUTHORS[:2])) == 0
    assert mixture.spared(groups(AUTHORS, rewards=(1.0, 1.0)), EVERYBODY) == 0
    assert mixture.spared(groups(AUTHORS), EVERYBODY) == 6


def test_newcomers_are_tried_one_as_often_as_another():
    pool = groups(AUTHORS[:4], 1) + groups(AUTHORS[4:], 40)
    mixture, tried = Mixture(MixtureSection(), 1), Counter[bytes]()
    for turn in range(800):
        tried.update(c.key.author for c in mixture.choose(pool, turn, 8, 8, frozenset()))
    assert set(tried) == EVERYBODY
    assert all(abs(count - 200) < 60 for count in tried.values())


def test_newcomers_of_use_and_untried_ones_take_turns_and_those_of_no_use_come_last():
    pool, order = groups(AUTHORS, 3), []
    tried = {AUTHORS[0]: 0.4, AUTHORS[1]: 1.2, AUTHORS[2]: 0.0}
    for turn in range(50):
        order.append(Mixture(MixtureSection(), 1).choose(pool, turn, 0, 0, frozenset(), tried))
    taken = Counter(c.key.author for (c,) in order)
    assert taken.keys() == {AUTHORS[1], *AUTHORS[3:]} and 15 < taken[AUTHORS[1]] < 35
    left = [c for c in pool if c.key.author not in AUTHORS[1:]]
    (last,) = Mixture(MixtureSection(), 1).choose(left, 1, 0, 0, frozenset(), tried)
    assert last.key.author == AUTHORS[0]


def test_an_honest_author_is_found_among_ever_so_many_useless_keys_and_then_kept():
    ben, mixture, tried, turns = AUTHORS[0], Mixture(MixtureSection(), 1), {}, []
    for turn in range(110):
        chosen = mixture.choose(groups([ben, *minted(200)], 6), turn, 8, 8, frozenset(), tried)
        turns.append([c.key.author == ben for c in chosen])
        for each in chosen:
            author = each.key.author
            tried[author] = tried.get(author, 0.0) + float(author == ben)
    found = next(turn for turn, bens in enumerate(turns) if any(bens))
    assert found <= 100
    assert all(map(any, turns[found:]))


@given(st.integers(0, 6), st.integers(0, 40))
def test_uniform_wants_the_same_number_always(external, own):
    mixture = Mixture(MixtureSection(external=external), 1, rule=UniformSelection)
    assert mixture.wanted(own) == external


@pytest.mark.parametrize(("own", "wanted"), [(0, 12), (5, 7), (12, 0), (30, 0)])
def test_auto_fills_an_update_with_groups_that_teach(own, wanted):
    assert Mixture(MixtureSection(external=4, target_groups=12), 1).wanted(own) == wanted


@given(pools, st.integers(0, 9))
def test_a_node_that_shares_nothing_takes_nothing(candidates, own):
    assert Mixture(MixtureSection(external=0), 1).choose(candidates, 1, own, own, EVERYBODY) == []


def test_every_useful_group_of_an_author_is_chosen_equally_often():
    candidates = [pooled(i, (0.0, 1.0), author=AUTHORS[i % 4]).candidate for i in range(8)]
    candidates += [pooled(i, (1.0, 1.0), author=AUTHORS[0]).candidate for i in range(8, 12)]
    mixture = Mixture(MixtureSection(target_groups=6), 3)
    chosen = [c for turn in range(2000) for c in mixture.choose(candidates, turn, 2, 2, EVERYBODY)]
    times = Counter(c.key.number for c in chosen)
    assert set(times) == set(range(8))
    assert all(abs(count - 1000) < 150 for count in times.values())


def test_nodes_with_different_seeds_choose_differently():
    pool = groups(AUTHORS, 4)
    mixtures = [Mixture(MixtureSection(), seed) for seed in range(20)]
    assert len({tuple(each.choose(pool, 1, 8, 8, EVERYBODY)) for each in mixtures}) > 15


@given(pools, st.integers(0), st.integers(1, 9))
def test_groups_that_were_used_fill_what_unused_ones_leave_free(candidates, turn, wanted):
    counted = [replace(c, uses=i % 3) for i, c in enumerate(candidates)]
    useful = sorted(c.uses for c in counted if informative(c.rewards))
    config = MixtureSection(external=wanted, author_share=1.0)
    chosen = Mixture(config, 1, rule=UniformSelection).choose(counted, turn, 0, wanted, EVERYBODY)
    assert [c.uses for c in chosen] == useful[:wanted]


def told(lead: float) -> list[Earned]:
    """Groups of this node, and of everybody else with so much more reward."""
    own = [Earned(OWN, "sums", 0, (0.0, 1.0)) for _ in range(40)]
    others = [Earned(a, "sums", 0, (0.5 + lead, 0.5 + lead, lead + 0.5 + 1e-9)) for a in AUTHORS]
    return own + 40 * others


def test_a_node_ahead_of_its_peers_lives_on_its_own_experience_but_keeps_looking():
    mixture, pool = Mixture(MixtureSection(external=6, target_groups=12), 1), groups(AUTHORS, 2)
    assert (mixture.spared(pool, EVERYBODY), mixture.wanted(2)) == (6, 10)
    mixture.observe(told(-0.3), EVERYBODY)
    wanted = (mixture.wanted(2), mixture.wanted(12))
    assert (mixture.spared(pool, EVERYBODY), *wanted) == (0, 1, 0)
    for _ in range(100):
        mixture.observe(told(0.1), EVERYBODY)
    assert (mixture.spared(pool, EVERYBODY), mixture.wanted(2)) == (6, 10)


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=64)), st.floats(-0.2, 0.2))
def test_groups_of_newcomers_change_neither_the_lead_nor_what_is_taken(rewards, lead):
    proven, pool = frozenset(AUTHORS), groups(AUTHORS, 2)
    plain, flooded = (Mixture(MixtureSection(), 1) for _ in range(2))
    strange = [Earned(bytes([n]) * 32, "sums", 0, each) for n, each in enumerate(rewards, 100)]
    plain.observe(told(lead), proven)
    flooded.observe([*strange, *told(lead)], proven)
    taken = [(m.lead, m.wanted(2), m.spared(pool, proven)) for m in (plain, flooded)]
    assert taken[0] == taken[1]


def test_a_published_mix_takes_what_it_is_told_to_whoever_is_ahead():
    mixture = Mixture(MixtureSection(external=6), 1, rule=UniformSelection)
    mixture.observe(told(-0.3), EVERYBODY)
    spared = [mixture.spared(pool, EVERYBODY) for pool in (groups(AUTHORS), groups(AUTHORS[:2]))]
    assert (*spared, mixture.wanted(2)) == (6, 2, 6)


def test_from_a_rich_pool_the_default_draws_among_the_newest_groups_only():
    pool = [pooled(i, author=AUTHORS[i % 4], received=START + i).candidate for i in range(80)]
    mixture = Mixture(MixtureSection(external=6, target_groups=8), 1)
    turns = range(60)
    drawn = {c.key.number for t in turns for c in mixture.choose(pool, t, 0, 0, EVERYBODY)}
    assert drawn == set(range(48, 80))
    published = Mixture(MixtureSection(external=3), 1, rule=UniformSelection)
    drawn = {c.key.number for t in turns for c in published.choose(pool, t, 0, 5, EVERYBODY)}
    assert min(drawn) < 5


def test_an_author_whose_groups_are_older_than_a_flood_is_drawn_all_the_same():
    anna, flo = AUTHORS[:2]
    pool = groups([anna], 2) + groups([flo], 200, received=START + 60)
    chosen = Mixture(MixtureSection(), 1).choose(pool, 1, 8, 8, frozenset({anna, flo}))
    assert {c.key.author for c in chosen} == {anna, flo}


@pytest.mark.parametrize(("discard", "taken"), [(True, 1), (False, 2)])
def test_groups_that_teach_nothing_are_taken_only_where_they_are_not_discarded(discard, taken):
    pool = groups(AUTHORS[:1]) + groups(AUTHORS[1:2], rewards=(0.0, 0.0))
    mixture = Mixture(MixtureSection(), 1, discard=discard)
    assert len(mixture.choose(pool, 1, 2, 2, EVERYBODY)) == taken


def test_a_share_is_not_rounded_down_and_is_of_own_and_external_groups_in_the_published_mix():
    sizes = {"external": 50, "target_groups": 100, "local": 50}
    config = MixtureSection(**sizes, author_share=0.29, unproven_share=0.57)
    caps = Mixture(config, 1).caps(100)
    assert (caps.author, caps.unproven) == (29, 57), "as products they are below"
    published = MixtureSection(external=4, local=8, unproven_share=0.5)
    mixture = Mixture(published, 1, rule=UniformSelection)
    assert (mixture.caps(12).author, mixture.caps(12).unproven) == (3, 6)
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
    pool = [groups([author], received=START + n)[0] for n, author in enumerate(authors)]
    mixture, taken = Mixture(MixtureSection(), 1), set()
    for turn in range(60):
        taken |= {c.key.author for c in mixture.choose(pool, turn, 8, 8, frozenset(authors))}
    assert taken == set(authors[-16:]), "four times the four that there is room for"


def test_a_newcomer_is_promising_from_the_very_bound_on() -> None:
    tried = dict.fromkeys(AUTHORS, PROMISING - 0.01) | {AUTHORS[0]: PROMISING}
    pool = groups(AUTHORS, 3)
    for turn in range(20):
        (first,) = Mixture(MixtureSection(), 1).choose(pool, turn, 0, 0, frozenset(), tried)
        assert first.key.author == AUTHORS[0]


def test_a_key_that_stays_unproven_does_not_keep_newcomers_out() -> None:
    stuck = AUTHORS[0]
    pool, tried, firsts = groups(AUTHORS, 3), {stuck: PROMISING}, Counter[bytes]()
    for turn in range(200):
        (first,) = Mixture(MixtureSection(), 1).choose(pool, turn, 0, 0, frozenset(), tried)
        firsts[first.key.author] += 1
    assert firsts[stuck] == pytest.approx(100, abs=30) and firsts.keys() == set(AUTHORS)
