"""Listeners write down what the checker later looks for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from protocol.manifest import sign_manifest
from swarm.common.counters import Counters
from swarm.publisher import Publisher
from tests.chaos.evidence import Evidence
from tests.chaos.listener import Listener
from tests.swarm.network_parts import EPOCH_SECONDS, FOUNDER, ORIGIN, MemorySwarm, group, identity


async def listening(swarm: MemorySwarm, evidence: Evidence) -> Listener:
    signed = sign_manifest(swarm.manifest, FOUNDER)
    transport = await swarm.stranger("larry")
    return Listener(evidence, transport, identity("larry"), signed, swarm.clock)


def test_a_listener_writes_down_announcements_offers_and_frames(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm, evidence = MemorySwarm(), Evidence(tmp_path / "heard.sqlite")
        anna = await swarm.join("anna")
        listener = asyncio.ensure_future((await listening(swarm, evidence)).listen())
        anna.publish(3)
        await swarm.step()
        await swarm.clock.advance(EPOCH_SECONDS / 2)
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        assert {row[0] for row in evidence.rows("SELECT author FROM announcements")} == {
            anna.identity.author
        }
        (offered,) = evidence.rows("SELECT content_id FROM offers")
        assert evidence.rows("SELECT content_id FROM frames") == [offered]
        assert evidence.rows("SELECT outcome FROM pulls") == [("ok",)]

    asyncio.run(scenario())


def test_what_larry_gave_to_anybody_is_on_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm, evidence = MemorySwarm(), Evidence(tmp_path / "heard.sqlite")
        ben, larry = await swarm.join("ben"), await listening(swarm, evidence)
        epoch = larry.directory.epoch
        larry.outbox.put([group(epoch, 0)], ORIGIN)
        publisher = Publisher(larry.directory, larry.outbox, larry.journal, larry.clock, Counters())
        await publisher.publish()
        assert evidence.rows("SELECT * FROM frames") == []
        await swarm.step()
        assert ben.authors() == {larry.identity.author}
        (offer,) = larry.outbox.offers(1)
        assert evidence.rows("SELECT content_id FROM frames") == [(offer.content_id,)]

    asyncio.run(scenario())
