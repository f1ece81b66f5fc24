"""History is fine of late and coarse of long ago, whatever the clock does."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.census import buckets as module
from swarm.census.authors import Mean
from swarm.census.buckets import (
    DAY,
    FINE_SECONDS,
    HOUR,
    HOURLY_SECONDS,
    TEN_MINUTES,
    Bucket,
    bucket_at,
    columns,
    record,
    rewards,
)

START = 1_700_000_000

STEPS = st.lists(
    st.tuples(
        st.one_of(
            st.integers(-2 * HOUR, 2 * HOUR), st.integers(-90 * DAY, 90 * DAY), st.just(TEN_MINUTES)
        ),
        st.integers(0, 9),
    ),
    max_size=60,
)


def news(now: float, offered: int = 1) -> Bucket:
    found = bucket_at(now)
    found.looks, found.nodes, found.offered = 1, 3, offered
    found.rewards["sums"] = Mean(1, 0.5)
    return found


@given(STEPS)
@settings(max_examples=300)
def test_buckets_ascend_apart_and_lose_nothing_wherever_the_clock_is_put(steps):
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


def test_two_days_are_kept_by_ten_minutes_sixty_days_by_hours_and_the_rest_by_days(monkeypatch):
    assert (FINE_SECONDS, HOURLY_SECONDS) == (2 * DAY, 60 * DAY)
    hourly = 6 * DAY
    monkeypatch.setattr(module, "HOURLY_SECONDS", hourly)  # sixty days of news take a minute
    kept: list[Bucket] = []
    end = START + 16 * DAY
    for now in range(START, end, TEN_MINUTES):
        record(kept, news(now))
    for bucket in kept:
        age = end - bucket.end
        assert bucket.seconds == TEN_MINUTES or age > FINE_SECONDS - TEN_MINUTES
        assert bucket.seconds == HOUR or not FINE_SECONDS + HOUR < age < hourly
        assert bucket.seconds == DAY or age < hourly + DAY
    assert len(kept) < 288 + 4 * 24 + 24 + 13
    assert sum(bucket.looks for bucket in kept) == 16 * 144


def test_of_more_buckets_than_are_kept_the_oldest_go(monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST", 5)
    kept: list[Bucket] = []
    for number in range(9):
        record(kept, news(START + number * TEN_MINUTES))
    assert [bucket.start for bucket in kept] == [
        int((START + n * TEN_MINUTES) // TEN_MINUTES) * TEN_MINUTES for n in range(4, 9)
    ]


def test_columns_are_of_one_length_and_null_where_nothing_was_seen() -> None:
    kept: list[Bucket] = []
    record(kept, bucket_at(START))
    record(kept, news(START + HOUR))
    found = columns(kept)
    assert found["nodes"] == [None, 3.0]
    assert rewards(kept) == {"sums": [None, 0.5]}
    assert found["seconds"] == [TEN_MINUTES] * 2 and found["offered"] == [0, 1]
    assert {len(each) for each in found.values()} == {2}
