"""Which frames a member pulls, how often, and what it remembers of them."""

import asyncio
from unittest.mock import Mock

import pytest

from protocol.announcement import Offer
from protocol.messages import MAX_GOSSIP, PullStatus
from swarm.collector import ATTEMPTS, FEW, PLENTY, STRANGERS_RATE, CollectorLimits
from swarm.groups import PooledGroup
from swarm.transport.transport import MINIMUM_RATE, RATE_GRACE_SECONDS
from tests.swarm.collector_parts import Parts, run
from tests.swarm.experience_parts import pooled
from tests.swarm.network_parts import EPOCH_SECONDS, identity

PAUSE = EPOCH_SECONDS / 4
"""Seconds after a first failure."""


async def test_collector_remembers_only_the_latest_pulled_frames(parts, cleo, monkeypatch):
    monkeypatch.setattr("swarm.collector.REMEMBERED_FRAMES", 3)
    offers = [cleo.offer(number) for number in range(5)]
    cleo.status = PullStatus.BUSY
    cleo.announce(offers[0])
    await parts.turn()
    await parts.swarm.clock.advance(PAUSE)
    cleo.status = PullStatus.OK
    for number in (1, 2, 0, 3, 4):
        cleo.announce(offers[number])
        await parts.turn()
    assert cleo.asked == [offers[n].content_id for n in (0, 1, 2, 0, 3, 4)]
    cleo.asked.clear()
    for number in (4, 3, 0, 1):
        cleo.announce(offers[number])
        await parts.turn()
    assert cleo.asked == [offers[1].content_id], "frame 0 was requested again, after frame 1"


@pytest.mark.parametrize(
    ("wrong", "times", "refused"), [(False, ATTEMPTS, {}), (True, 1, {"wrong_content": 1})]
)
async def test_pull_is_tried_3_times_if_busy_once_if_wrong(parts, cleo, wrong, times, refused):
    assert ATTEMPTS == 3
    offer = cleo.offer(1)
    if wrong:
        cleo.frames[offer.content_id] = b"something else"
    else:
        cleo.status = PullStatus.BUSY
    for _ in range(ATTEMPTS + 3):
        cleo.announce(offer)
        await parts.turn()
        await parts.swarm.clock.advance(100 * PAUSE)
    assert cleo.asked == [offer.content_id] * times
    assert parts.node.accounts.get(cleo.key).refused == refused


async def test_author_that_fails_to_deliver_is_paused_with_backoff(parts, cleo):
    async def is_pulled(number: int) -> bool:
        before = len(cleo.asked)
        cleo.announce(cleo.offer(number))
        await parts.turn()
        return len(cleo.asked) > before

    cleo.status = PullStatus.NOT_FOUND
    assert await is_pulled(1)
    await parts.swarm.clock.advance(PAUSE - 1.0)
    assert not await is_pulled(2)
    await parts.swarm.clock.advance(1.0)
    assert await is_pulled(3)
    await parts.swarm.clock.advance(PAUSE)
    assert not await is_pulled(4), "the second pause is twice as long as the first"
    await parts.swarm.clock.advance(PAUSE)
    cleo.status = PullStatus.OK
    assert await is_pulled(5)
    cleo.status = PullStatus.NOT_FOUND
    assert await is_pulled(6)
    await parts.swarm.clock.advance(PAUSE)
    assert await is_pulled(7), "a delivered frame resets the pause"


async def test_banned_author_receives_no_requests(parts: Parts) -> None:
    cleo, ben = await parts.author("cleo"), await parts.author("ben")
    parts.node.accounts.refuse(cleo.key, "bad_signature")
    for each in (cleo, ben):
        each.announce(each.offer(1))
    await parts.turn()
    assert (len(cleo.asked), len(ben.asked)) == (0, 1)


@pytest.mark.parametrize("known", [False, True])
async def test_only_proven_authors_may_serve_at_a_slow_rate(parts, cleo, known):
    if known:
        parts.trust(cleo)
    rate = (MINIMUM_RATE + STRANGERS_RATE) / 2
    parts.swarm.network.upload_rate[cleo.transport.peer_id] = rate
    cleo.announce(cleo.offer(1, size=int(2 * RATE_GRACE_SECONDS * rate)))
    turn = asyncio.ensure_future(parts.turn())
    await parts.swarm.clock.advance(10.0)
    await turn
    assert parts.node.count("frames_pulled") == known
    assert parts.node.count("pulls_failed{reason=too_slow}") == (not known)


async def test_most_informative_frame_is_pulled_first(parts: Parts, cleo) -> None:
    offers = [cleo.offer(number, informative=number) for number in (1, 3, 0, 2)]
    cleo.announce(*offers)
    for _ in offers:
        await parts.turn()
    assert cleo.asked == [offers[place].content_id for place in (1, 3, 0)]


@pytest.mark.parametrize("parts", [(CollectorLimits(uninformative=True),)], indirect=True)
async def test_collector_pulls_uninformative_frames_if_configured(parts, cleo):
    cleo.announce(cleo.offer(1, informative=0))
    await parts.turn()
    assert len(cleo.asked) == 1


@pytest.mark.parametrize(("blind", "informative"), [(False, (1, 1, 1, 1)), (True, (0, 1, 2, 3))])
def test_pull_order_is_random_for_equal_frames_and_for_observers(blind, informative):
    first = set[int]()

    async def scenario(parts: Parts) -> None:
        cleo = await parts.author("cleo")
        offers = [cleo.offer(number, informative=n) for number, n in enumerate(informative)]
        cleo.announce(*offers)
        await parts.turn()
        first.add([offer.content_id for offer in offers].index(cleo.asked[0]))

    for seed in range(16):
        run(scenario, CollectorLimits(pulls_per_epoch=1, blind=blind), seed)
    assert len(first) >= 3 and (0 in first or not blind)


async def test_each_author_serves_one_pull_at_a_time(parts: Parts, cleo) -> None:
    cleo.held = asyncio.Event()
    cleo.announce(cleo.offer(1), cleo.offer(2))
    for _ in range(3):
        await parts.collector.look()
        await asyncio.sleep(0)
    cleo.held.set()
    await parts.collector.settle()
    assert len(cleo.asked) == 1
    await parts.turn()
    assert len(set(cleo.asked)) == 2


ONE = CollectorLimits(pulls_per_epoch=1, concurrent_pulls=1)


@pytest.mark.parametrize("parts", [(ONE, seed) for seed in range(6)], indirect=True)
async def test_failed_pull_immediately_starts_another_pull(parts):
    authors = [await parts.author(name) for name in ("ben", "cleo", "dora")]
    for each in authors:
        each.status = PullStatus.NOT_FOUND
        each.announce(each.offer(1))
    authors[0].status = PullStatus.OK
    await parts.turn()
    assert parts.node.count("frames_pulled") == 1


async def test_pulled_frames_and_new_groups_are_counted(parts: Parts, cleo) -> None:
    parts.gate.groups = [pooled(1), pooled(2)]
    for number in (1, 2):
        cleo.announce(cleo.offer(number))
        await parts.turn()
    assert parts.node.count("frames_pulled") == 2
    assert parts.node.count("groups_pooled") == len(parts.node.pool.fresh()) == 2


async def failing(frame: bytes, expected_author: bytes, offer: Offer) -> list[PooledGroup]:
    raise ZeroDivisionError


async def test_local_error_is_raised_once_and_the_next_turn_continues(parts, cleo):
    parts.gate.admit = failing
    cleo.announce(cleo.offer(1))
    with pytest.raises(ZeroDivisionError):
        await parts.turn()
    await parts.turn()
    assert len(cleo.asked) == 1


async def test_many_failed_pulls_do_not_delay_next_turn(parts: Parts) -> None:
    healthy, parts.gate.admit = parts.gate.admit, failing
    authors = [await parts.author(name) for name in ("ben", "cleo", "dora")]
    for author in authors:
        author.announce(author.offer(1))
    with pytest.raises(ZeroDivisionError):
        await parts.turn()
    parts.gate.admit = healthy
    for author in authors:
        author.announce(author.offer(2))
    await parts.turn()
    assert parts.node.count("frames_pulled") == 3


@pytest.mark.parametrize("parts", [(CollectorLimits(concurrent_pulls=1),)], indirect=True)
async def test_a_failure_to_start_the_next_pull_is_raised_by_the_next_turn(parts: Parts) -> None:
    for author in [await parts.author(name) for name in ("ben", "cleo")]:
        author.status = PullStatus.NOT_FOUND
        author.announce(author.offer(1))
    await parts.collector.look()
    parts.node.accounts.banned = Mock(side_effect=[ZeroDivisionError, False])
    await parts.swarm.clock.advance(0.0)
    with pytest.raises(ZeroDivisionError):
        await parts.collector.look()


@pytest.mark.parametrize("parts", [(CollectorLimits(concurrent_pulls=1),)], indirect=True)
async def test_close_cancels_active_pulls_and_starts_no_new_ones(parts):
    authors = [await parts.author(name) for name in ("ben", "cleo")]
    for each in authors:
        each.held = asyncio.Event()
        each.announce(each.offer(1))
    await parts.collector.look()
    await parts.swarm.clock.advance(0.0)
    await parts.collector.close()
    await parts.collector.settle()
    assert sum(len(each.asked) for each in authors) == 1
    assert sum(each.dropped for each in authors) == 1


async def test_node_requests_gossip_once_per_time_slot(parts: Parts, cleo) -> None:
    for epoch in range(1, 4):
        for _ in range(3):
            await parts.collector.gossip()
        assert cleo.gossips == epoch
        await parts.swarm.clock.advance(EPOCH_SECONDS)


async def test_silent_peer_is_retried_after_a_pause_that_an_answer_resets(parts, cleo):
    clock = parts.swarm.clock
    # Stop 10 s before the time slot ends, so the next one begins within the pause.
    await clock.advance(EPOCH_SECONDS - clock.time() % EPOCH_SECONDS - 10.0)
    cleo.silent = True
    await parts.collector.gossip()
    await clock.advance(EPOCH_SECONDS / 2)
    await parts.collector.gossip()
    assert cleo.gossips == 1
    cleo.silent = False
    await clock.advance(EPOCH_SECONDS)
    await parts.collector.gossip()
    assert cleo.gossips == 2
    cleo.silent = True
    for expected in (3, 4):
        await clock.advance(EPOCH_SECONDS)
        await parts.collector.gossip()
        assert cleo.gossips == expected, "the pause is as long as the first one"


def test_gossip_replaces_a_silent_peer_with_another() -> None:
    silent = 0

    async def scenario(parts: Parts) -> None:
        nonlocal silent
        sid, ben = await parts.author("sid"), await parts.author("ben")
        sid.silent = True
        await parts.collector.gossip()
        await parts.swarm.clock.advance(EPOCH_SECONDS - 1.0)
        before = ben.gossips
        await parts.collector.gossip()
        if sid.gossips and not before:
            silent += 1
            assert (sid.gossips, ben.gossips) == (1, 1)

    for seed in range(16):
        run(scenario, CollectorLimits(gossip_peers=1), seed)
    assert silent >= 4


TWO = CollectorLimits(gossip_peers=2, named=frozenset({identity("named").peer_id}))


@pytest.mark.parametrize("parts", [(TWO, seed) for seed in range(4)], indirect=True)
async def test_gossip_always_includes_one_proven_or_named_peer(parts):
    for number in range(12):
        await parts.author(f"stranger {number}")
    named, friend = await parts.author("named"), await parts.author("friend")

    async def requests_in_three_slots(author):
        before = author.gossips
        for _ in range(3):
            await parts.collector.gossip()
            await parts.swarm.clock.advance(EPOCH_SECONDS)
        return author.gossips - before

    assert await requests_in_three_slots(named) == 3
    parts.trust(friend)
    assert await requests_in_three_slots(friend) == 3


PULLS = 3
MUCH = CollectorLimits(gossip_peers=20, pulls_per_epoch=PULLS)


@pytest.mark.parametrize("parts", [(MUCH,)], indirect=True)
async def test_node_with_enough_offers_requests_few_announcements(parts, cleo):
    authors = [await parts.author(f"author {number}") for number in range(PLENTY * PULLS)]
    for author in authors:
        await parts.collector.gossip()
        await parts.swarm.clock.advance(EPOCH_SECONDS)
        author.announce(author.offer(1, informative=0))
    for author in authors:
        author.announce(author.offer(1))
    await parts.collector.gossip()
    assert cleo.limits == [MAX_GOSSIP] * len(authors) + [FEW]
    await parts.turn()
    await parts.swarm.clock.advance(EPOCH_SECONDS)
    for author in authors:
        author.announce(author.offer(1))
    await parts.collector.gossip()
    assert cleo.limits[-1] == MAX_GOSSIP, "half of the authors have no new offers left"
