"""An observer's census counts a swarm and stays bounded despite unknown peers."""

import math
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import census as module
from swarm import reputation as reputation_module
from swarm.census import DAY, HOUR, TEN_MINUTES, Bucket, bucket_at, columns, record
from swarm.groups import Mean
from swarm.reputation import NOBODY, RefusalCounts
from tests.swarm.census.census_parts import SWARM, Watched, group, key, offer, peer


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_census_counts_nodes_bootstrap_nodes_and_link_types_separately(watched):
    silent, relayed = peer("silent", policy_step=None), peer("ben", link="relayed")
    seed, far = peer("seed", policy_step=0), peer("far", connected=False, link=None)
    watched.look(peer("anna", [offer(1)]), seed, silent)
    now = watched.census.now
    assert (now.nodes, now.bootstrap, now.groups_offered, now.connected) == (2, 1, 2, 2)
    watched.look(peer("anna", policy_step=0), seed)
    assert watched.census.now.bootstrap == 1, "anna shared groups and is not a bootstrap node"
    assert (watched.state.total.authors, watched.state.swarm) == (2, SWARM.hex())
    watched.look(peer("anna"), relayed, far, estimated=700)
    now = watched.census.now
    assert (now.nodes, now.connected, now.direct, now.relayed) == (3, 2, 1, 1)
    assert now.estimated == 700


def test_census_counts_a_reannounced_frame_once(watched) -> None:
    watched.look(peer("anna", [offer(1, 4), offer(2, 3)]))
    watched.look(peer("anna", [offer(2, 3), offer(1, 4)]))
    watched.look(peer("anna", [offer(2, 3), offer(3, 5)]))
    assert watched.state.total.offered == 12
    assert watched.state.authors[key("anna").hex()].offered == 12


def test_census_counts_each_join_and_leave_once_across_restarts(watched):
    anna = peer("anna", [offer(1)])
    watched.look(anna, peer("ben"))
    watched.look(anna)
    watched.look(anna, peer("ben"))
    bucket = watched.state.buckets[-1]
    assert (bucket.joined, bucket.left, bucket.looks, bucket.nodes) == (3, 1, 3, 5)
    assert watched.state.total.authors == 2
    again = Watched(watched.state)
    for _ in range(2):
        again.look(anna)
    assert again.state.total.authors == 2 and again.state.total.offered == 2
    assert sum(bucket.joined for bucket in again.state.buckets) == 3
    again.look()
    assert not again.state.authors[key("ben").hex()].present


def test_restarted_census_keeps_peers_that_announce_in_the_grace_period(watched):
    watched.look(peer("anna"), peer("ben"))
    again = Watched(watched.state, patience=3.0)
    again.look()
    assert (again.census.now.nodes, again.census.present) == (0, []), "no peer has announced yet"
    once_more = Watched(again.state, patience=3.0)
    once_more.look()
    once_more.look(peer("anna"), peer("carla"))
    counted = once_more.state.buckets[-1]
    assert (counted.joined, counted.left) == (3, 0)
    assert once_more.census.present == sorted(key(name).hex() for name in ("anna", "carla"))
    once_more.wait(3.0)
    once_more.look(peer("anna"), peer("carla"))
    assert sum(bucket.left for bucket in once_more.state.buckets) == 1, "ben did not return in time"
    once_more.look(peer("carla"))
    assert sum(bucket.left for bucket in once_more.state.buckets) == 2
    assert len(once_more.state.present) == 1


def test_verified_plus_refused_equals_checked(watched) -> None:
    larry = key("larry")
    watched.look(peer("anna"), peer("larry"))
    arrived = [group("anna", 1), group("anna", 2, (1.0, 1.0, 0.0, 0.0, 1.0))]
    refused = {(larry, "reward_mismatch"): 2, (NOBODY, "replay"): 1}
    watched.look(peer("anna"), peer("larry"), arrived=arrived, refused=refused)
    total, anna = watched.state.total, watched.state.authors[key("anna").hex()]
    assert (total.verified, total.checked) == (2, 5)
    assert total.refused == {"reward_mismatch": 2, "replay": 1}
    assert anna.rewards["sums"].value == pytest.approx(0.55)
    assert watched.state.authors[larry.hex()].refused == {"reward_mismatch": 2}
    assert watched.state.authors[larry.hex()].checked == 2
    bucket = watched.state.buckets[-1]
    assert (bucket.checked, bucket.verified, bucket.refused) == (5, 2, 3)


def test_census_keeps_bounded_daily_totals_per_author(watched) -> None:
    for number in range(module.DAYS + 3):
        watched.look(peer("anna", [offer(number)]), arrived=[group("anna", number)])
        watched.wait(DAY)
    days = watched.state.authors[key("anna").hex()].days
    assert len(days) == module.DAYS
    assert all((day.offered, day.rewards.value) == (2, 0.5) for day in days)
    assert [day.start for day in days] == sorted({day.start for day in days})


def test_rewards_cover_only_the_last_day(watched) -> None:
    watched.look(peer("anna"), arrived=[group("anna", 1, (1.0, 1.0))])
    watched.wait(DAY / 2)
    watched.look(peer("anna"), arrived=[group("anna", 2, (0.0, 1.0), level=2)])
    assert [(e.level, e.reward) for e in watched.state.lately.estimates()] == [(0, 1.0), (2, 0.5)]
    watched.wait(DAY / 2 + 3600)
    watched.look(peer("anna"))
    assert [e.level for e in watched.state.lately.estimates()] == [2]


def test_interval_needs_two_authors_and_clusters_groups_by_author() -> None:
    lately = module.RecentRewards()
    for reward in (1.0, 1.0, 0.0, 1.0):
        lately.add(0, "sums", 0, "anna", reward)
    (alone,) = lately.estimates()
    assert (alone.groups, alone.reward, alone.low, alone.high) == (4, 0.75, None, None)
    lately.add(0, "sums", 0, "ben", 0.0)
    (two,) = lately.estimates()
    residuals = (3 - 4 * 0.6, 0 - 0.6)
    half = 12.706 * math.sqrt(sum(r * r for r in residuals) * 2) / 5
    assert two.reward == pytest.approx(0.6)
    assert (two.low, two.high) == (max(0.0, 0.6 - half), min(1.0, 0.6 + half))


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1)), min_size=1, max_size=80))
@settings(max_examples=200)
def test_interval_contains_its_mean_and_stays_in_0_to_1(told: list[tuple[int, float]]) -> None:
    lately = module.RecentRewards()
    for author, reward in told:
        lately.add(0, "sums", 0, str(author), reward)
    (found,) = lately.estimates()
    assert found.reward == pytest.approx(fmean(reward for _, reward in told))
    if found.low is not None and found.high is not None:
        assert 0.0 <= found.low <= found.reward + 1e-9
        assert found.reward - 1e-9 <= found.high <= 1.0


def test_excess_authors_share_one_entry_per_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PER_HOUR", 3)
    lately = module.RecentRewards()
    for number in range(50):
        lately.add(0, "sums", number % 2, str(number), 0.5)
    cells = lately.hours[0]["sums"]
    assert sum(len(authors) for authors in cells.values()) <= 5
    assert sum(found.groups for found in lately.estimates()) == 50


def test_sybil_keys_evict_no_present_or_contributing_author(watched, monkeypatch):
    monkeypatch.setattr(module, "MAX_AUTHORS", 4)
    watched.look(peer("anna"), peer("ben"), arrived=[group("anna", 1)])
    watched.wait(60)
    watched.look(peer("ben"), *[peer(f"flo{n}") for n in range(9)])
    kept = watched.state.authors
    assert len(kept) == 4 and {key("anna").hex(), key("ben").hex()} <= kept.keys()
    assert watched.census.now.nodes == 10, "nodes without an account count too"
    watched.wait(60)
    watched.look(peer("cleo"), *[peer(f"flo{n}") for n in range(9)], arrived=[group("cleo", 1)])
    kept = watched.state.authors
    assert len(kept) == 4 and {key("anna").hex(), key("cleo").hex()} <= kept.keys()
    assert watched.state.total.authors < 8, "keys without an account are not recounted"


update = st.tuples(st.integers(0, 12), st.integers(0, 5), st.booleans())
updates = st.lists(update, max_size=12)


@given(st.lists(updates, max_size=12))
@settings(max_examples=100, deadline=None)
def test_census_bounds_authors_and_keeps_totals_consistent(looks: list) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_AUTHORS", 5)
        watched = Watched()
        verified = 0
        for told in looks:
            people = {f"p{who}": [offer(number)] for who, number, _ in told}
            arrived = [group(f"p{who}", number) for who, number, gives in told if gives]
            verified += len(arrived)
            watched.look(*[peer(n, o) for n, o in people.items()], arrived=arrived)
            watched.wait(700)
            assert len(watched.state.authors) <= 5
        assert watched.state.total.verified == verified
        assert sum(b.verified for b in watched.state.buckets) == verified
        assert sum(b.offered for b in watched.state.buckets) == watched.state.total.offered
        joins = sum(b.joined for b in watched.state.buckets)
        assert joins - sum(b.left for b in watched.state.buckets) == watched.census.now.nodes


def test_refusal_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reputation_module, "MAX_TALLIED", 3)
    tally = RefusalCounts()
    for number in range(10):
        tally.refused(bytes([number]) * 32, "replay", 2)
    taken = tally.take()
    assert len(taken) == 4 and taken[NOBODY, "replay"] == 14 and taken.total() == 20
    assert not tally.take()


START = 1_700_000_000
BOUNDS = ((-2 * HOUR, 2 * HOUR), (-90 * DAY, 90 * DAY), (TEN_MINUTES, TEN_MINUTES))
STEP = st.one_of(st.integers(*bounds) for bounds in BOUNDS)
STEPS = st.lists(st.tuples(STEP, st.integers(0, 9)), max_size=60)


def news(now: float, offered: int = 1) -> Bucket:
    found = bucket_at(now)
    found.looks, found.nodes, found.offered = 1, 3, offered
    found.rewards["sums"] = Mean(1, 0.5)
    return found


@given(STEPS)
@settings(max_examples=300)
def test_buckets_stay_ordered_and_lossless_when_the_clock_jumps(steps):
    kept: list[Bucket] = []
    now, told = START, 0
    for step, offered in steps:
        now = max(0, now + step)
        told += offered
        record(kept, news(now, offered))
        assert all(before.end <= after.start for before, after in pairwise(kept))
        assert {bucket.seconds for bucket in kept} <= {TEN_MINUTES, HOUR, DAY}
        assert all(bucket.start % TEN_MINUTES == 0 for bucket in kept)
        assert kept[-1].start <= now
    assert sum(bucket.offered for bucket in kept) == told
    assert sum(bucket.looks for bucket in kept) == len(steps)
    assert sum(bucket.rewards["sums"].groups for bucket in kept) == len(steps)


def test_buckets_are_10_minutes_for_2_days_hourly_for_60_days_then_daily(monkeypatch):
    assert (module.FINE_SECONDS, module.HOURLY_SECONDS) == (2 * DAY, 60 * DAY)
    hourly = 6 * DAY
    monkeypatch.setattr(module, "HOURLY_SECONDS", hourly)  # The test of sixty days takes a minute.
    kept: list[Bucket] = []
    end = START + 16 * DAY
    for now in range(START, end, TEN_MINUTES):
        record(kept, news(now))
    for bucket in kept:
        age = end - bucket.end
        assert bucket.seconds == TEN_MINUTES or age > module.FINE_SECONDS - TEN_MINUTES
        assert bucket.seconds == HOUR or not module.FINE_SECONDS + HOUR < age < hourly
        assert bucket.seconds == DAY or age < hourly + DAY
    assert len(kept) < 288 + 4 * 24 + 24 + 13
    assert sum(bucket.looks for bucket in kept) == 16 * 144


def test_oldest_buckets_are_dropped_over_the_limit(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_BUCKETS", 5)
    kept: list[Bucket] = []
    times = [START + number * TEN_MINUTES for number in range(9)]
    for now in times:
        record(kept, news(now))
    assert [bucket.start for bucket in kept] == [t // TEN_MINUTES * TEN_MINUTES for t in times[4:]]


def test_columns_have_equal_length_and_null_for_missing_values() -> None:
    kept: list[Bucket] = []
    record(kept, bucket_at(START))
    record(kept, news(START + HOUR))
    found = columns(kept)
    assert found["nodes"] == [None, 3.0]
    assert module.rewards(kept) == {"sums": [None, 0.5]}
    assert found["seconds"] == [TEN_MINUTES] * 2 and found["offered"] == [0, 1]
    assert {len(each) for each in found.values()} == {2}
