"""Swarms of long answers: what they are founded with holds their frames."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from node.network.founding import bounds_for, caution, found_swarm, frame_weight
from protocol.codec import MAX_FRAME_BYTES
from protocol.errors import BadSchema, TooLarge, TooManyItems
from protocol.frame import check_batch, open_frame, pack, seal
from protocol.identity import Identity
from protocol.manifest import Manifest, open_manifest
from tests.long_answers import batch, long_group
from tests.swarm.network_parts import EPOCH_SECONDS, ORIGIN, MemorySwarm, manifest

ANNA = Identity.from_seed(b"a" * 32)
BOUNDED = ("max_frame_bytes", "max_text_bytes", "max_completions")
SWARM = bytes(32)


def founded(tokens: int, answers: int) -> Manifest:
    bounds = bounds_for(tokens, answers)
    return manifest(**{name: getattr(bounds, name) for name in BOUNDED})


@pytest.mark.parametrize(("tokens", "answers"), [(2_048, 8), (8_192, 8), (4_096, 16)])
def test_a_group_of_long_answers_goes_whole_through_a_frame_of_the_proposed_size(
    tokens: int, answers: int
) -> None:
    agreed, group = founded(tokens, answers), long_group(tokens, answers)
    assert not pack([group], agreed.max_frame_bytes).oversize
    frame = seal(batch(group), ANNA, SWARM)
    assert len(frame) <= frame_weight(tokens, answers) <= agreed.max_frame_bytes
    opened = open_frame(frame, SWARM, agreed).batch.groups[0]
    for sent, got in zip(group.completions, opened.completions, strict=True):
        assert sent.segments[0].text == got.segments[0].text
        assert sent.segments[0].tokens.ids == got.segments[0].tokens.ids


def test_the_usual_bounds_refuse_what_the_proposed_ones_take() -> None:
    group = long_group(8_192, 8)
    frame = seal(batch(group), ANNA, SWARM)
    with pytest.raises(TooLarge):
        open_frame(frame, SWARM, manifest())
    assert pack([group], manifest().max_frame_bytes).oversize
    many = batch(long_group(8, 72))
    with pytest.raises(TooManyItems, match="72 completions, limit 64"):
        check_batch(many, manifest())
    check_batch(many, founded(8, 72))


def test_short_answers_leave_a_manifest_as_it_is() -> None:
    short, usual = (
        open_manifest(found_swarm(ANNA, name="s", answers=answers))
        for answers in (bounds_for(64, 8), None)
    )
    assert [getattr(short, name) for name in BOUNDED] == [getattr(usual, name) for name in BOUNDED]


def test_a_founder_is_refused_what_no_frame_can_hold_and_told_what_can() -> None:
    with pytest.raises(BadSchema, match="answer_tokens: 64 answers of 8192 tokens") as refused:
        bounds_for(8_192, 64)
    said = str(refused.value)
    most, fewer = (int(said.split(before)[1].split()[0]) for before in ("take ", "groups of "))
    assert bounds_for(most, 64).max_frame_bytes <= MAX_FRAME_BYTES
    assert bounds_for(8_192, fewer).max_frame_bytes <= MAX_FRAME_BYTES
    for tokens, answers in ((most + 1, 64), (8_192, fewer + 1), (0, 8), (64, 1), (64, 1_025)):
        with pytest.raises(BadSchema):
            bounds_for(tokens, answers)


def test_a_node_is_told_which_keys_make_groups_too_large_for_its_swarm() -> None:
    usual = manifest()
    assert caution(usual, 64, 8) == ""
    said = caution(usual, 4_096, 8)
    for word in ("engine.max_new_tokens = 4096", "engine.group_size = 8", "max_frame_bytes"):
        assert word in said
    assert "swarm-node create --answer-tokens 4096 --group-size 8" in said
    assert caution(founded(4_096, 8), 4_096, 8) == ""
    assert "max_completions" in caution(usual, 64, 65)
    assert "max_frame_bytes" in caution(usual, 1 << 17, 2)
    assert "max_text_bytes" in caution(usual, 5_000, 2)


@pytest.mark.parametrize(("agreed", "whole"), [(founded(8_192, 8), True), (manifest(), False)])
def test_long_answers_reach_another_pool_and_what_they_lose_is_counted(
    agreed: Manifest, whole: bool
) -> None:
    async def scenario() -> None:
        bounds = {name: getattr(agreed, name) for name in BOUNDED}
        swarm = MemorySwarm(**bounds)
        anna, ben = await swarm.join("anna"), await swarm.join("ben")
        epoch = int(swarm.clock.time() // EPOCH_SECONDS)
        group = replace(long_group(8_192, 8), epoch=epoch)
        anna.outbox.put([group], ORIGIN)
        for _ in range(4):
            await swarm.step()
            await swarm.clock.advance(EPOCH_SECONDS / 4)
        assert anna.count("groups_without_tokens") == int(not whole)
        (found,) = ben.pool.fresh()
        (pooled,) = ben.pool.consume([found], 1)
        told = [each.segments[0].tokens for each in pooled.group.completions]
        assert [len(each.ids) if each else 0 for each in told] == [8_192 * whole] * 8

    asyncio.run(scenario())
