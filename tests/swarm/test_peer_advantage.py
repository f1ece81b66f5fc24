"""The estimated peer reward advantage, on streams of groups with known truth."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.groups import Mean
from swarm.peer_advantage import KEPT, OWN, Earned, PeerAdvantage

AUTHORS = [bytes([number]) * 32 for number in range(1, 9)]
ALL = frozenset(AUTHORS)
LEVELS = [("sums", 0), ("sums", 1), ("words", 0), ("words", 1), ("words", 2)]
COMPLETIONS = 8


def group(author: bytes, level: tuple[str, int], chance: float, draw: random.Random) -> Earned:
    """Return an informative group whose completions are right with this chance."""
    while True:
        rewards = tuple(float(draw.random() < chance) for _ in range(COMPLETIONS))
        if 0.0 < sum(rewards) < COMPLETIONS:
            return Earned(author, *level, rewards)


def generate(
    author: bytes, skill: float, count: int, draw: random.Random, levels: list = LEVELS
) -> Iterator[Earned]:
    """Yield groups of a policy; later levels of the list are harder."""
    for _ in range(count):
        place = draw.randrange(len(levels))
        yield group(author, levels[place], max(0.02, skill - 0.08 * place), draw)


def measure(rounds: int, skills: Mapping[bytes, float], seed: int = 0) -> PeerAdvantage:
    """Return the estimate after rounds in which each node writes two groups."""
    advantage, draw = PeerAdvantage(), random.Random(seed)
    for _ in range(rounds):
        groups = [g for node, skill in skills.items() for g in generate(node, skill, 2, draw)]
        advantage.observe(groups, ALL)
    return advantage


def test_equals_have_no_advantage() -> None:
    equals = dict.fromkeys([OWN, *AUTHORS[:7]], 0.5)
    values = [measure(40, equals, seed).value or 0.0 for seed in range(60)]
    assert abs(fmean(values)) < 0.01
    assert max(map(abs, values)) < 0.12


def test_easier_tasks_give_peers_no_advantage() -> None:
    """A peer with easy tasks has higher rewards, but is not better."""
    draw = random.Random(0)
    values = []
    for _ in range(40):
        advantage = PeerAdvantage()
        for _ in range(40):
            local = generate(OWN, 0.5, 4, draw, LEVELS[3:])
            easy = [group(AUTHORS[0], LEVELS[0], 0.8, draw) for _ in range(4)]
            advantage.observe([*local, *easy, *generate(AUTHORS[0], 0.5, 2, draw, LEVELS[3:])], ALL)
        values.append(advantage.value)
    assert abs(fmean(values)) < 0.02


@pytest.mark.parametrize("better", [True, False])
def test_advantage_has_the_right_sign_after_ten_rounds(better: bool) -> None:
    ours, theirs = (0.45, 0.6) if better else (0.6, 0.45)
    signs = [
        (measure(10, {OWN: ours, **dict.fromkeys(AUTHORS[:7], theirs)}, seed).value > 0.0) == better
        for seed in range(50)
    ]
    assert fmean(signs) >= 0.9


def test_observations_decay_at_the_stated_rate() -> None:
    advantage = PeerAdvantage()
    ours, theirs = (Earned(node, "sums", 0, (0.0, 0.0, 1.0)) for node in (OWN, AUTHORS[0]))
    advantage.observe([ours, theirs], ALL)
    for _ in range(20):
        advantage.observe([], ALL)
    counts = [count for *_, count, _ in advantage.state_dict()["seen"]]
    assert counts == pytest.approx([KEPT**20] * 2)
    for _ in range(100):
        advantage.observe([], ALL)
    assert (advantage.value, advantage.state_dict()["seen"]) == (None, [])


def test_peer_worth_is_zero_if_far_ahead_and_one_if_behind_or_caught_up() -> None:
    assert measure(40, {OWN: 0.8, **dict.fromkeys(AUTHORS[:7], 0.35)}).worth == 0.0
    assert measure(40, {OWN: 0.35, **dict.fromkeys(AUTHORS[:7], 0.8)}).worth == 1.0
    advantage, draw = measure(40, {OWN: 0.7, **dict.fromkeys(AUTHORS[:7], 0.4)}), random.Random(1)
    assert advantage.worth < 0.2
    for _ in range(60):
        advantage.observe(
            [g for node in [OWN, *AUTHORS[:7]] for g in generate(node, 0.7, 2, draw)], ALL
        )
    assert advantage.worth > 0.8


def test_uninformative_groups_and_levels_seen_by_one_side_are_ignored() -> None:
    advantage, same = PeerAdvantage(), PeerAdvantage()
    local, other = (0.0, 1.0), (0.0, 0.0, 1.0)
    groups = [Earned(OWN, "sums", 0, local), Earned(AUTHORS[0], "sums", 0, other)]
    solved = [Earned(AUTHORS[1], "sums", 0, (1.0,) * 8), Earned(OWN, "sums", 0, (0.0,) * 8)]
    advantage.observe(groups, ALL)
    same.observe(groups + 9 * solved, ALL)
    assert advantage.value == same.value is not None
    split = PeerAdvantage()
    split.observe([groups[0], Earned(AUTHORS[0], "sums", 1, other)], ALL)
    assert (split.value, split.worth) == (None, 1.0)


def test_estimate_continues_unchanged_after_a_restart() -> None:
    draw = random.Random(3)
    advantage, again = measure(12, {OWN: 0.5, AUTHORS[0]: 0.4, AUTHORS[1]: 0.7}), PeerAdvantage()
    again.load_state_dict(json.loads(json.dumps(advantage.state_dict())))
    assert (again.value, again.worth) == (advantage.value, advantage.worth)
    more = [g for node in (OWN, *AUTHORS[:3]) for g in generate(node, 0.5, 3, draw)]
    for each in (advantage, again):
        each.observe(more, ALL)
    assert again.value == advantage.value


def shift(flood: list[Earned], proven: frozenset[bytes]) -> float:
    """Return by how much a flood of groups changes the estimate of three equal peers."""
    before = measure(40, dict.fromkeys([OWN, *AUTHORS[:3]], 0.5))
    flooded = PeerAdvantage()
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
def test_flood_narrows_the_gap_by_no_more_than_25_percent(count, reward, levels):
    right = int(reward * COMPLETIONS)
    rewards = (1.0,) * right + (0.0,) * (COMPLETIONS - right)
    flood = [Earned(AUTHORS[7], *levels[n % len(levels)], rewards) for n in range(count)]
    before = measure(40, dict.fromkeys([OWN, *AUTHORS[:3]], 0.5))
    seen = before.state_dict()["seen"]
    local = {(env, n): (total / weight, weight) for node, env, n, weight, total in seen if not node}
    hers = Counter((each.env, each.level) for each in flood)
    weights = {level: n * local[level][1] / (n + local[level][1]) for level, n in hers.items()}
    excess = sum(w * (reward - local[level][0]) for level, w in weights.items())
    gap = abs(excess / sum(weights.values()) - (before.value or 0.0))
    assert shift(flood, ALL) <= 0.25 * gap + 0.02


def test_unproven_keys_do_not_change_the_estimate() -> None:
    rare = (1.0,) + (0.0,) * 63
    keys = [number.to_bytes(32) for number in range(1000, 1400)]
    many = [Earned(key, *level, rare) for level in LEVELS for key in keys]
    assert shift(many, ALL) == 0.0 < shift(many, ALL | {keys[0]})
    alone = PeerAdvantage()
    alone.observe([*generate(OWN, 0.5, 9, random.Random(1)), *many], frozenset())
    assert (alone.value, alone.worth) == (None, 1.0)


def test_one_peer_counts_less_than_7_peers() -> None:
    pair = measure(200, {OWN: 0.6, AUTHORS[0]: 0.3})
    seven = measure(200, {OWN: 0.6, **dict.fromkeys(AUTHORS[:7], 0.3)})
    assert seven.value < pair.value < 0.35 * seven.value


def test_expensive_peer_groups_are_worth_less_in_proportion() -> None:
    advantage = PeerAdvantage()
    assert (advantage.costs, advantage.worth) == ((None, None), 1.0)
    advantage.observe_costs(Mean(0, 2.0), Mean())
    assert (advantage.costs, advantage.worth) == ((None, None), 1.0), "none was informative yet"
    advantage.observe_costs(Mean(2, 6.06), Mean(4, 4.0))
    assert advantage.costs == (pytest.approx(4.0), 1.0), "rounds without information count"
    assert advantage.worth == 1.0, "cheap groups are worth no more"
    for _ in range(400):
        advantage.observe_costs(Mean(1, 1.0), Mean(8, 32.0))
    for _ in range(2000):
        advantage.observe_costs(Mean(1, 1.0), Mean())
    assert advantage.worth == pytest.approx(0.25, rel=0.01), "rounds without peers change nothing"


def test_one_proven_author_of_poor_groups_cannot_end_sharing() -> None:
    levels = [(f"env-{n}", 0) for n in range(8)]
    poor = [Earned(AUTHORS[7], *level, (1.0,) + (0.0,) * 7) for level in levels]
    fair = (1.0,) * 6 + (0.0,) * 2
    advantage = PeerAdvantage()
    for _ in range(60):
        even = [Earned(key, *level, fair) for key in (OWN, *AUTHORS[:3]) for level in levels]
        advantage.observe([*even, *4 * poor], ALL)
    assert advantage.value is not None and -0.051 < advantage.value < 0.0
    assert advantage.worth > 0.98
