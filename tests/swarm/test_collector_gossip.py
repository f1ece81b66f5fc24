"""Whom a member asks what they have heard."""

from __future__ import annotations

import pytest

from protocol.messages import MAX_GOSSIP
from swarm.collector import FEW, PLENTY, CollectorLimits
from tests.swarm.collector_parts import Parts, run
from tests.swarm.network_parts import EPOCH_SECONDS


async def test_peers_are_asked_what_they_heard_once_an_epoch(parts: Parts) -> None:
    cleo = await parts.author("cleo")
    for epoch in range(1, 4):
        for _ in range(3):
            await parts.collector.gossip()
        assert cleo.gossips == epoch
        await parts.swarm.clock.advance(EPOCH_SECONDS)


async def test_a_peer_that_does_not_answer_is_asked_again_after_a_pause_that_an_answer_ends(parts):
    clock = parts.swarm.clock
    cleo = await parts.author("cleo")
    # So near to the end of an epoch that the next one begins within the pause.
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
    for asked in (3, 4):
        await clock.advance(EPOCH_SECONDS)
        await parts.collector.gossip()
        assert cleo.gossips == asked, "no longer a pause than the first"


def test_in_place_of_a_peer_that_did_not_answer_another_is_asked() -> None:
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


@pytest.mark.parametrize("seed", range(4))
def test_one_peer_known_to_be_useful_is_asked_whatever_the_draw(seed: int) -> None:
    async def scenario(parts: Parts) -> None:
        for number in range(12):
            await parts.author(f"stranger {number}")
        friend = await parts.author("friend")
        parts.trust(friend)
        for _ in range(3):
            await parts.collector.gossip()
            await parts.swarm.clock.advance(EPOCH_SECONDS)
        assert friend.gossips == 3

    run(scenario, CollectorLimits(gossip_peers=2), seed)


def test_who_knows_plenty_to_pull_asks_for_few_announcements() -> None:
    pulls = 3

    async def scenario(parts: Parts) -> None:
        cleo = await parts.author("cleo")
        authors = [await parts.author(f"author {number}") for number in range(PLENTY * pulls)]
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
        assert cleo.limits[-1] == MAX_GOSSIP, "half of them have nothing left that is new"

    run(scenario, CollectorLimits(gossip_peers=20, pulls_per_epoch=pulls))
