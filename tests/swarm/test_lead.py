"""How far peers are ahead: the estimate on streams of groups whose truth is known."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.peer_advantage import KEPT, OWN, Earned, PeersLead

AUTHORS = [bytes([number]) * 32 for number in range(1, 9)]
ALL = frozenset(AUTHORS)
LEVELS = [("sums", 0), ("sums", 1), ("words", 0), ("words", 1), ("words", 2)]
COMPLETIONS = 8


def group(author: bytes, level: tuple[str, int], chance: float, draw: random.Random) -> Earned:
    """Completions of one task, each right with that chance; some right and some wrong."""
    while True:
        rewards = tuple(float(draw.random() < chance) for _ in range(COMPLETIONS))
        if 0.0 < sum(rewards) < COMPLETIONS:
            return Earned(author, *level, rewards)


def written(
    author: bytes, skill: float, count: int, draw: random.Random, levels: list = LEVELS
) -> Iterator[Earned]:
    """Groups of a policy: later levels of the list are harder."""
    for _ in range(count):
        place = draw.randrange(len(levels))
        yield group(author, levels[place], max(0.02, skill - 0.08 * place), draw)


def after(rounds: int, skills: Mapping[bytes, float], seed: int = 0) -> PeersLead:
    """What a node knows after some rounds in which everybody writes two groups."""
    lead, draw = PeersLead(), random.Random(seed)
    for _ in range(rounds):
        groups = [g for who, skill in skills.items() for g in written(who, skill, 2, draw)]
        lead.observe(groups, ALL)
    return lead


def test_among_equals_nobody_leads() -> None:
    equals = dict.fromkeys([OWN, *AUTHORS[:7]], 0.5)
    values = [after(40, equals, seed).value or 0.0 for seed in range(60)]
    assert abs(fmean(values)) < 0.01
    assert max(map(abs, values)) < 0.12


def test_tasks_of_other_levels_make_nobody_lead() -> None:
    """A peer with easy tasks has more reward, and is no better."""
    draw = random.Random(0)
    values = []
    for _ in range(40):
        lead = PeersLead()
        for _ in range(40):
            own = written(OWN, 0.5, 4, draw, LEVELS[3:])
            easy = [group(AUTHORS[0], LEVELS[0], 0.8, draw) for _ in range(4)]
            lead.observe([*own, *easy, *written(AUTHORS[0], 0.5, 2, draw, LEVELS[3:])], ALL)
        values.append(lead.value)
    assert abs(fmean(values)) < 0.02


@pytest.mark.parametrize("better", [True, False])
def test_a_gap_of_a_tenth_has_its_sign_within_ten_rounds(better: bool) -> None:
    ours, theirs = (0.45, 0.6) if better else (0.6, 0.45)
    signs = [
        (after(10, {OWN: ours, **dict.fromkeys(AUTHORS[:7], theirs)}, seed).value > 0.0) == better
        for seed in range(50)
    ]
    assert fmean(signs) >= 0.9


def test_what_was_seen_fades_at_the_stated_rate() -> None:
    lead = PeersLead()
    ours, theirs = (Earned(who, "sums", 0, (0.0, 0.0, 1.0)) for who in (OWN, AUTHORS[0]))
    lead.observe([ours, theirs], ALL)
    for _ in range(20):
        lead.observe([], ALL)
    counts = [count for *_, count, _ in lead.state_dict()["seen"]]
    assert counts == pytest.approx([KEPT**20] * 2)
    for _ in range(100):
        lead.observe([], ALL)
    assert (lead.value, lead.state_dict()["seen"]) == (None, [])


def test_a_peer_is_worth_nothing_to_a_node_far_ahead_and_all_to_one_behind_or_caught_up() -> None:
    assert after(40, {OWN: 0.8, **dict.fromkeys(AUTHORS[:7], 0.35)}).worth == 0.0
    assert after(40, {OWN: 0.35, **dict.fromkeys(AUTHORS[:7], 0.8)}).worth == 1.0
    lead, draw = after(40, {OWN: 0.7, **dict.fromkeys(AUTHORS[:7], 0.4)}), random.Random(1)
    assert lead.worth < 0.2
    for _ in range(60):
        lead.observe([g for who in [OWN, *AUTHORS[:7]] for g in written(who, 0.7, 2, draw)], ALL)
    assert lead.worth > 0.8


def test_a_group_without_advantage_or_of_a_level_that_one_side_has_seen_counts_on_neither() -> None:
    lead, same = PeersLead(), PeersLead()
    own, other = (0.0, 1.0), (0.0, 0.0, 1.0)
    groups = [Earned(OWN, "sums", 0, own), Earned(AUTHORS[0], "sums", 0, other)]
    solved = [Earned(AUTHORS[1], "sums", 0, (1.0,) * 8), Earned(OWN, "sums", 0, (0.0,) * 8)]
    lead.observe(groups, ALL)
    same.observe(groups + 9 * solved, ALL)
    assert lead.value == same.value is not None
    apart = PeersLead()
    apart.observe([groups[0], Earned(AUTHORS[0], "sums", 1, other)], ALL)
    assert (apart.value, apart.worth) == (None, 1.0)


def test_it_goes_on_after_a_restart_as_if_there_had_been_none() -> None:
    draw = random.Random(3)
    lead, again = after(12, {OWN: 0.5, AUTHORS[0]: 0.4, AUTHORS[1]: 0.7}), PeersLead()
    again.load_state_dict(json.loads(json.dumps(lead.state_dict())))
    assert (again.value, again.worth) == (lead.value, lead.worth)
    more = [g for who in (OWN, *AUTHORS[:3]) for g in written(who, 0.5, 3, draw)]
    for each in (lead, again):
        each.observe(more, ALL)
    assert again.value == lead.value


def moved(flood: list[Earned], proven: frozenset[bytes]) -> float:
    """By how much a flood of groups moves what three equal peers have told."""
    before = after(40, dict.fromkeys([OWN, *AUTHORS[:3]], 0.5))
    flooded = PeersLead()
    flooded.load_state_dict(before.state_dict())
    flooded.observe(flood, proven)
    before.observe([], ALL)
    return abs((flooded.value or 0.0) - (before.value or 0.0))


@example(count=400, reward=0.875, levels=LEVELS)
@given(
    count=st.integers(1, 400),
    reward=st.sampled_from([0.125, 0.5, 0.875]),
    levels=st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5),
)
def test_flo_moves_it_by_no_more_than_a_quarter_of_how_far_she_is_from_it(count, reward, levels):
    right = int(reward * COMPLETIONS)
    rewards = (1.0,) * right + (0.0,) * (COMPLETIONS - right)
    flood = [Earned(AUTHORS[7], *levels[n % len(levels)], rewards) for n in range(count)]
    before = after(40, dict.fromkeys([OWN, *AUTHORS[:3]], 0.5))
    seen = before.state_dict()["seen"]
    own = {(env, n): (total / met, met) for who, env, n, met, total in seen if not who}
    hers = Counter((each.env, each.level) for each in flood)
    weights = {level: n * own[level][1] / (n + own[level][1]) for level, n in hers.items()}
    ahead = sum(w * (reward - own[level][0]) for level, w in weights.items())
    far = abs(ahead / sum(weights.values()) - (before.value or 0.0))
    assert moved(flood, ALL) <= 0.25 * far + 0.02


def test_new_keys_do_not_move_it_until_they_are_proven() -> None:
    rare = (1.0,) + (0.0,) * 63
    keys = [number.to_bytes(32) for number in range(1000, 1400)]
    many = [Earned(key, *level, rare) for level in LEVELS for key in keys]
    assert moved(many, ALL) == 0.0 < moved(many, ALL | {keys[0]})
    alone = PeersLead()
    alone.observe([*written(OWN, 0.5, 9, random.Random(1)), *many], frozenset())
    assert (alone.value, alone.worth) == (None, 1.0)


def test_a_lone_peer_counts_for_half_at_most() -> None:
    pair = after(200, {OWN: 0.6, AUTHORS[0]: 0.3})
    crowd = after(200, {OWN: 0.6, **dict.fromkeys(AUTHORS[:7], 0.3)})
    assert crowd.value < pair.value < 0.35 * crowd.value
