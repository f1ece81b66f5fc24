"""What a node gives is what its swarm takes, and as young as it can be."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm

BLANKS = " " * (1 << 16)
OVER = {
    "an answer of too much text": ("even", BLANKS + "x"),
    "too many answers": ("even", "odd") * 32 + ("even",),
}


@pytest.mark.parametrize("texts", OVER.values(), ids=OVER)
async def test_a_group_that_the_manifest_forbids_stays_here_and_costs_no_strike(texts, caplog):
    swarm = MemorySwarm()
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    anna.publish(3)
    anna.publish(1, texts)
    for _ in range(4):
        await swarm.step()
        await swarm.clock.advance(EPOCH_SECONDS / 2)
    assert anna.count("outbox_dropped{reason=over_manifest}") == 1
    assert "engine.max_new_tokens or engine.group_size" in caplog.text
    assert len(ben.pool.fresh()) == 3
    assert ben.accounts.get(anna.identity.author).strikes == 0


async def test_who_writes_more_than_an_epoch_takes_gives_the_youngest_groups() -> None:
    chance = random.Random(1)
    letters = "".join(chance.choices("0123456789abcdefghijklmnopqrstuvwxyz", k=16_000))
    texts = letters, letters[::-1] + "x"
    swarm = MemorySwarm(max_frame_bytes=1 << 16)
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    await swarm.step()
    ages: Counter[int] = Counter()
    epochs = anna.directory.manifest.max_age_epochs + 4
    for _ in range(epochs):
        anna.publish(24, texts)
        for _ in range(4):
            await swarm.step()
            await swarm.clock.advance(EPOCH_SECONDS / 4)
        ages.update(ben.directory.epoch - each.key.epoch for each in ben.pool.arrived())
    assert anna.count("outbox_dropped{reason=group_stale}") > 0
    assert ages and max(ages) <= 2
