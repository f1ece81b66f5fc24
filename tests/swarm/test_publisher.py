"""The outbox puts each local group into one frame, and serves within bounds."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from experiments.virtual_clock import VirtualClock
from protocol.announcement import Offer
from protocol.frame import without_tokens
from swarm.groups import Origin, pack_waiting
from swarm.journal import Journal
from swarm.publisher import MAX_ANNOUNCEMENTS, Outbox
from tests.long_answers import long_group
from tests.swarm.experience_parts import START, group
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, Node, running

ORIGIN = Origin(3, "tiny", encoding=b"\x01" * 32, temperature=0.5, max_new_tokens=16)
ALL = 1 << 40
NEVER = {"oldest_epoch": 0, "oldest_frame": 0.0, "max_bytes": 1 << 30}


@pytest.fixture
def outbox(counters) -> Outbox:
    return Outbox(Journal(":memory:", VirtualClock(START)), counters)


def offer(number: int, size: int = 100) -> Offer:
    return Offer(bytes([number]) * 32, size, 2, bytes(8), 1)


def test_outbox_keeps_group_order_and_origin(outbox):
    newer = replace(ORIGIN, policy_step=4)
    outbox.put([group(1), group(2)], ORIGIN)
    outbox.put([group(3)], newer)
    waiting = outbox.take(ALL)
    assert [w.group for w in waiting] == [group(1), group(2), group(3)]
    assert [w.origin for w in waiting] == [ORIGIN, ORIGIN, newer]
    assert outbox.take(ALL) == waiting


def test_kept_frame_removes_its_groups_and_their_numbers_are_not_reused(outbox):
    outbox.put([group(1), group(2), group(3)], ORIGIN)
    first, second, third = outbox.take(ALL)
    outbox.keep(offer(1), b"frame one", START, [first.number, second.number])
    assert [w.group for w in outbox.take(ALL)] == [group(3)]
    assert outbox.get(offer(1).content_id) == b"frame one"
    assert outbox.get(bytes(32)) is None
    outbox.drop([third.number])
    outbox.put([group(4)], ORIGIN)
    assert outbox.take(ALL)[0].number > third.number


def test_outbox_survives_a_restart_and_offers_newest_frames_first(path, counters):
    journal = Journal(path, VirtualClock(START))
    outbox = Outbox(journal, counters)
    outbox.put([group(1)], ORIGIN)
    for number in range(6):
        outbox.keep(offer(number), b"frame", START + number, [])
    journal.close()
    again = Outbox(Journal(path, VirtualClock(START)), counters)
    assert [w.group for w in again.take(ALL)] == [group(1)]
    assert again.offers(4) == [offer(5), offer(4), offer(3), offer(2)]


def test_outbox_drops_and_counts_expired_groups_and_frames(outbox, counters):
    outbox.put([group(1, epoch=4), group(1, epoch=5)], ORIGIN)
    outbox.keep(offer(1), b"old", START, [])
    outbox.keep(offer(2), b"young", START + 10, [])
    outbox.prune(**{**NEVER, "oldest_epoch": 5, "oldest_frame": START + 5})
    assert [w.group.epoch for w in outbox.take(ALL)] == [5]
    assert outbox.offers(4) == [offer(2)]
    reasons = "frame_old", "group_stale"
    assert counters.snapshot() == {f"outbox_dropped{{reason={each}}}": 1 for each in reasons}


def test_outbox_bounds_bytes_and_keeps_the_newest_groups_and_frames(outbox):
    for number in range(5):
        outbox.keep(offer(number, size=100), bytes(100), START + number, [])
    outbox.put([group(i) for i in range(50)], ORIGIN)
    outbox.prune(**{**NEVER, "max_bytes": 250 * 8})
    assert len(outbox.offers(9)) == 5
    numbers = [w.group.index for w in outbox.take(ALL)]
    assert 0 < len(numbers) < 50
    assert numbers == list(range(50))[-len(numbers) :]
    outbox.prune(**{**NEVER, "max_bytes": 250})
    assert outbox.offers(9) == [offer(4), offer(3)]


def test_outbox_drops_a_malformed_group_and_keeps_the_others(outbox, counters):
    outbox.put([group(1, rewards=(float("nan"), 0.0)), group(2)], ORIGIN)
    assert [w.group for w in outbox.take(ALL)] == [group(2)]
    assert counters.snapshot() == {"outbox_dropped{reason=group_refused}": 1}


def test_outbox_strips_tokens_from_a_group_too_long_for_a_frame(outbox, counters):
    long = long_group(28_000, 16)
    outbox.put([long, group(2)], ORIGIN)
    assert [w.group for w in outbox.take(ALL)] == [without_tokens(long), group(2)]
    assert counters.snapshot() == {"groups_without_tokens": 1}


def test_take_returns_the_newest_groups_that_fit(outbox):
    outbox.put(map(group, range(5)), ORIGIN)
    assert [w.group for w in outbox.take(1)] == [group(4)], "at least one group is returned"
    (one,) = outbox.take(1)
    size = len(pack_waiting(one.group, one.origin))
    assert [w.group for w in outbox.take(2 * size)] == [group(3), group(4)]


TURN = EPOCH_SECONDS / 4
EARLY = TURN / 10


async def start_of_epoch(swarm: MemorySwarm) -> None:
    await swarm.clock.advance(EPOCH_SECONDS - swarm.clock.time() % EPOCH_SECONDS)


async def test_groups_published_between_turns_are_announced_early(swarm, anna) -> None:
    await start_of_epoch(swarm)
    async with running(anna):
        await swarm.clock.advance(EARLY)
        announced = anna.count("announced")
        await async_publish(anna)
        await swarm.clock.advance(EARLY)
        assert (anna.count("frames_sealed"), anna.count("announced")) == (1, announced + 1)


async def test_idle_node_announces_once_per_time_slot(swarm, anna) -> None:
    await start_of_epoch(swarm)
    async with running(anna):
        await swarm.clock.advance(5.5 * EPOCH_SECONDS)
        assert anna.count("announced") == 6


async def test_member_rejects_a_second_run(swarm, anna) -> None:
    async with running(anna):
        await swarm.clock.advance(EARLY)
        with pytest.raises(RuntimeError, match="already listening"):
            await anna.member.run()


async def async_publish(node: Node) -> None:
    """Publish from a thread, as a learner does, and let the loop run."""
    await asyncio.to_thread(node.publish)


async def test_busy_node_announces_four_times_per_time_slot(swarm, anna):
    await start_of_epoch(swarm)
    await swarm.clock.advance(EARLY)
    async with running(anna):
        for _ in range(3 * 40 - 5):
            anna.publish()
            await swarm.clock.advance(EPOCH_SECONDS / 40)
        assert anna.count("announced") == 3 * MAX_ANNOUNCEMENTS
        await swarm.clock.advance(EPOCH_SECONDS)
        assert anna.outbox.take(1 << 20) == []


async def test_new_groups_wait_for_a_turn_after_a_recent_announcement(swarm, anna) -> None:
    await start_of_epoch(swarm)
    async with running(anna):
        await swarm.clock.advance(EARLY)
        anna.publish()
        await swarm.clock.advance(EARLY)
        anna.publish()
        await swarm.clock.advance(TURN / 2)
        assert anna.count("frames_sealed") == 1
        await swarm.clock.advance(TURN / 2)
        assert anna.count("frames_sealed") == 2


async def test_groups_published_while_stopped_are_sent_after_the_restart(swarm, anna):
    async with running(anna):
        await swarm.clock.advance(EARLY)
    await async_publish(anna)
    assert len(anna.outbox.take(1 << 20)) == 1
    async with running(anna):
        await swarm.clock.advance(EARLY)
        assert anna.outbox.take(1 << 20) == []


def test_publish_works_after_the_loop_ends(swarm: MemorySwarm) -> None:
    async def scenario() -> Node:
        async with running(anna := await swarm.join("anna")):
            await swarm.clock.advance(EARLY)
        return anna

    anna = asyncio.run(scenario())
    anna.publish()
    assert len(anna.outbox.take(1 << 20)) == 1


BLANKS = " " * (1 << 16)
LARGE = {
    "an answer of too much text": ("even", BLANKS + "x"),
    "too many answers": ("even", "odd") * 32 + ("even",),
}


@pytest.mark.parametrize("texts", LARGE.values(), ids=LARGE)
async def test_node_drops_groups_over_manifest_limits(swarm, anna, ben, texts, caplog):
    anna.publish(3)
    anna.publish(1, texts)
    await swarm.turns(4, EPOCH_SECONDS / 2)
    assert anna.count("outbox_dropped{reason=over_manifest}") == 1
    assert "engine.max_new_tokens or engine.group_size" in caplog.text
    assert len(ben.pool.fresh()) == 3
    assert ben.accounts.get(anna.identity.author).penalties == 0


async def test_overproducing_node_sends_its_newest_groups() -> None:
    rng = random.Random(1)
    letters = "".join(rng.choices("0123456789abcdefghijklmnopqrstuvwxyz", k=16_000))
    texts = letters, letters[::-1] + "x"
    swarm = MemorySwarm(max_frame_bytes=1 << 16)
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    await swarm.step()
    ages: Counter[int] = Counter()
    epochs = anna.directory.manifest.max_age_epochs + 4
    for _ in range(epochs):
        anna.publish(24, texts)
        await swarm.turns(4, EPOCH_SECONDS / 4)
        ages.update(ben.directory.epoch - each.key.epoch for each in ben.pool.arrived())
    assert anna.count("outbox_dropped{reason=group_stale}") > 0
    assert ages and max(ages) <= 2
