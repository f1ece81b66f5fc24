"""Mallory announces frames of an honest author, to have them spoiled before he is asked."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from protocol.announcement import Offer
from protocol.frame import seal
from protocol.messages import PULL_STREAM, PullStatus, encode_pull_response
from protocol.rollout import Batch
from tests.hostile.test_hostile_peers import LIMITS, against, offer_as
from tests.swarm.network_parts import EPOCH_SECONDS, Node, group, identity


def frame_of(name: str, node: Node) -> bytes:
    """A good frame of an author called ``name``."""
    made = (group(node.directory.epoch, 0),)
    batch = Batch(1, 1, node.clock.time(), "tiny", bytes(32), 1.0, 16, made)
    return seal(batch, identity(name), node.directory.swarm_id)


@pytest.mark.parametrize("serves", [True, False], ids=["serves", "serves-not"])
def test_mallory_announces_bens_frame_first_and_it_is_still_taken_from_ben(serves: bool) -> None:
    async def scenario() -> None:
        swarm, anna, mallory = await against("mallory")
        ben = await swarm.stranger("ben")
        frame = frame_of("ben", anna)
        good = encode_pull_response(PullStatus.OK, frame)

        async def spoil(peer: str, request: bytes) -> bytes:
            return good if serves else encode_pull_response(PullStatus.NOT_FOUND)

        async def serve(peer: str, request: bytes) -> bytes:
            return good

        mallory.handle(PULL_STREAM, spoil, LIMITS)
        ben.handle(PULL_STREAM, serve, LIMITS)
        offer = Offer(sha256(frame).digest(), len(frame), 1, bytes((0,) * 7 + (1,)), 1)
        await offer_as(mallory, anna, "mallory", offer)
        for _ in range(4):
            await anna.member.step()
            await swarm.clock.advance(EPOCH_SECONDS / 8)
        assert anna.authors() == set()
        await offer_as(ben, anna, "ben", offer)
        await anna.member.step()
        assert anna.authors() == {identity("ben").author}
        assert anna.accounts.get(identity("ben").author).strikes == 0
        assert anna.accounts.banned(identity("mallory").author) == serves

    asyncio.run(scenario())
