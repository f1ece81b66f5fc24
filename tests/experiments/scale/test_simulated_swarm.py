"""Whole simulated swarms: their figures show the effects of each scenario."""

from dataclasses import astuple, replace
from itertools import pairwise

import pytest

from experiments.scale.figures import Figures
from experiments.scale.network import TrafficKind
from experiments.scale.node import SharedOpeners
from experiments.scale.settings import SCENARIOS, Settings, swarm_manifest
from experiments.scale.swarm import run
from protocol.announcement import Announcement, depth_for, sign_announcement
from protocol.identity import Identity

SMALL = Settings(nodes=12, epochs=6, turns=2, pulls=4)


def simulated(scenario: str, **changes: int) -> Figures:
    return run(replace(SMALL, **changes), SCENARIOS[scenario])


def summary(figures: Figures) -> list[object]:
    """Return all figures except CPU time."""
    epochs = [astuple(replace(epoch, cpu_ms=0.0)) for epoch in figures.epochs]
    return [epochs, figures.waits, figures.taken]


def test_every_node_in_a_steady_swarm_soon_has_peer_groups() -> None:
    figures = simulated("steady", epochs=9)
    assert figures.waits.never == 0 and figures.waits.worst <= 1.0
    assert figures.least_found == 1.0
    assert 0.5 < figures.taken <= 1.0
    assert 1.0 <= figures.authors <= SMALL.pulls
    assert figures.rpcs(TrafficKind.FRAMES) == SMALL.pulls
    assert figures.key_records == 12 and figures.key_reads == 2 * 12
    assert all(figures.bytes(kind) > 0 for kind in TrafficKind)


@pytest.mark.parametrize("scenario", ["churn", "loss", "partition"])
def test_seed_determines_the_figures(scenario: str) -> None:
    first = summary(simulated(scenario))
    assert summary(simulated(scenario)) == first
    assert summary(simulated(scenario, seed=1)) != first


def test_partitioned_halves_exchange_no_groups_until_healing() -> None:
    figures = simulated("partition", epochs=9, nodes=16)
    crossed = [epoch.crossed for epoch in figures.epochs]
    assert crossed[4:6] == [0.0, 0.0]
    assert figures.mended is not None and figures.mended <= 2
    assert simulated("steady").mended is None


def test_churn_replaces_nodes_and_new_nodes_find_groups() -> None:
    figures = simulated("churn", nodes=40, epochs=12)
    assert {epoch.nodes for epoch in figures.epochs} == {40}
    steady = simulated("steady", nodes=40, epochs=12)
    assert summary(figures) != summary(steady)
    assert figures.waits.never == 0


def test_churn_removes_30_percent_in_60_time_slots() -> None:
    settings = Settings(nodes=1000, epochs=60)
    churn = SCENARIOS["churn"]
    assert churn.leaving(settings, 0) == 0
    assert sum(churn.leaving(settings, epoch) for epoch in range(61)) == 300


def test_growth_is_geometric_up_to_the_full_size() -> None:
    growth = SCENARIOS["growth"]
    settings = Settings(nodes=10_000, epochs=20)
    sizes = [growth.size(settings, epoch) for epoch in range(20)]
    assert sizes[0] == 10 and sizes[-1] == 10_000
    assert all(1.4 < after / before < 1.5 for before, after in pairwise(sizes[4:]))
    figures = simulated("growth", nodes=30)
    assert [epoch.nodes for epoch in figures.epochs] == [10, 12, 16, 19, 24, 30]


def test_message_loss_causes_more_requests() -> None:
    whole, lossy = simulated("steady", nodes=30), simulated("loss", nodes=30)
    assert lossy.rpcs(TrafficKind.FRAMES) > whole.rpcs(TrafficKind.FRAMES)
    assert lossy.waits.never == 0


def test_announcement_depth_matches_the_swarm_size() -> None:
    for nodes in (10, 60):
        assert simulated("steady", nodes=nodes).depth == pytest.approx(depth_for(nodes), abs=0.4)


def test_shared_cache_is_bounded_and_separate_per_swarm() -> None:
    openings = SharedOpeners.with_cache(1)
    swarm = swarm_manifest(10)
    records = [
        sign_announcement(
            Announcement(1, 0, 0, number, 1, 120.0, 0, ()),
            Identity.from_seed(bytes([number]) * 32),
            swarm.swarm_id,
        )
        for number in (1, 2)
    ]
    (first, again, _, rebuilt) = (
        openings.record(record, swarm.swarm_id, swarm.manifest)
        for record in (records[0], records[0], records[1], records[0])
    )
    assert first is again
    assert rebuilt == first
    assert SharedOpeners.with_cache(1).record is not openings.record
