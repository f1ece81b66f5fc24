"""The size of a swarm is guessed from a few shards, without bias, and odd counts move it little."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.announcement import depth_for
from protocol.codec import MAX_DEPTH
from swarm.directory import ALL_DEPTHS, LARGEST_STEP, Density, Path, authors_along


def author(number: int) -> bytes:
    return number.to_bytes(32, "big")


def swarm_of(count: int, depth: float, rng: random.Random) -> list[tuple[int, int, bytes]]:
    """Authors at the depths around ``depth``: depth, path and name of each."""
    return [
        (min(int(depth + rng.random()), MAX_DEPTH), rng.getrandbits(64), author(number))
        for number in range(count)
    ]


def along(swarm: list[tuple[int, int, bytes]], depths: tuple[int, ...], path: int) -> Path:
    """Whom a reader of ``path`` finds."""
    found: dict[int, list[bytes]] = {depth: [] for depth in depths}
    for depth, its_path, name in swarm:
        if depth in found and its_path >> (64 - depth) == path >> (64 - depth):
            found[depth].append(name)
    return found


def paths_of(rng: random.Random) -> tuple[int, int]:
    first = rng.getrandbits(64)
    return first, first ^ (1 << 63) ^ rng.getrandbits(60)


@pytest.mark.parametrize("count", [5, 40, 300, 2000])
@pytest.mark.parametrize("chosen", [0.0, 2.5, 4.0])
def test_a_count_is_right_at_the_mean_whatever_depths_authors_chose(count: int, chosen: float):
    rng = random.Random(count)
    swarm = swarm_of(count, chosen, rng)
    counts = [authors_along(along(swarm, ALL_DEPTHS, rng.getrandbits(64))) for _ in range(400)]
    assert fmean(counts) == pytest.approx(count, rel=0.2)


def test_an_author_who_stands_at_every_depth_counts_once() -> None:
    assert authors_along({depth: [author(1)] for depth in ALL_DEPTHS}) == 1.0


@pytest.mark.parametrize("count", [1, 10, 33, 100, 1000, 10_000])
def test_nodes_settle_at_the_depth_that_suits_and_each_meets_some_thirty_authors(count: int):
    rng = random.Random(count)
    nodes = [Density() for _ in range(8)]
    for _ in range(20):
        swarm = swarm_of(count, fmean(node.depth for node in nodes), rng)
        for node in nodes:
            paths = paths_of(rng)
            depths = node.depths() if node.known else ALL_DEPTHS
            found = [along(swarm, depths, path) for path in paths]
            if node.known:
                node.count(found)
            else:
                node.sound(found)
    assert [node.depth for node in nodes] == pytest.approx([depth_for(count)] * 8, abs=0.8)
    met = []
    for node in nodes:
        found = [along(swarm, node.depths(), path) for path in paths_of(rng)]
        met.append(len({name for path in found for names in path.values() for name in names}))
    assert min(count, 16) <= fmean(met) <= 48


def test_a_newcomer_finds_the_depth_of_a_large_swarm_at_once() -> None:
    rng = random.Random(3)
    swarm = swarm_of(10_000, depth_for(10_000), rng)
    for _ in range(10):
        newcomer = Density()
        newcomer.sound([along(swarm, ALL_DEPTHS, path) for path in paths_of(rng)])
        assert newcomer.depth == pytest.approx(depth_for(10_000), abs=1.2)


def test_a_node_whose_part_of_the_swarm_was_small_goes_where_the_others_are_when_it_sounds():
    rng = random.Random(4)
    swarm = swarm_of(10_000, depth_for(10_000), rng)
    node = Density()
    for _ in range(3):
        node.count([{0: [author(n) for n in range(10)]}] * 2)
    assert node.depth == 0.0
    node.sound([along(swarm, ALL_DEPTHS, path) for path in paths_of(rng)])
    assert node.depth > 8.0


@given(st.lists(st.lists(st.integers(0, 2000), min_size=13, max_size=13), max_size=12))
def test_no_count_moves_the_depth_by_more_than_one(epochs: list[list[int]]) -> None:
    node = Density()
    node.sound([{0: [author(n) for n in range(40)]}] * 2)
    for counts in epochs:
        before = node.depth
        found = {
            depth: [author(4000 * depth + n) for n in range(count)]
            for depth, count in enumerate(counts)
        }
        node.count([{depth: found[depth] for depth in node.depths()}] * 2)
        assert abs(node.depth - before) <= LARGEST_STEP + 1e-9
        assert 0.0 <= node.depth <= MAX_DEPTH


def test_sybil_fills_one_path_for_one_epoch_and_nothing_moves() -> None:
    honest: Path = {0: [author(n) for n in range(10)]}
    node = Density()
    for _ in range(3):
        node.count([honest, honest])
    crowd: Path = {0: [author(n) for n in range(1000)]}
    node.count([crowd, crowd])
    assert node.depth == 0.0


def test_sybil_stands_in_the_deep_and_a_newcomer_believes_the_path_without_her() -> None:
    honest = [author(n) for n in range(10)]
    newcomer = Density()
    newcomer.sound([{0: honest, 12: [author(99)]}, {0: honest, 12: []}])
    assert newcomer.depth == 0.0
