"""What a node learns of its own network side."""

from __future__ import annotations

import asyncio
from pathlib import Path

from node.config.config import Config
from node.network.membership import Membership
from node.storage.run_folder import RunFolder
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.experience import Experience
from swarm.journal import MEMORY, Journal
from swarm.pool import Pool


class Broken:
    """A member whose network side ends by itself."""

    failure = None

    def status(self) -> None:
        return None

    async def run(self) -> None:
        raise OSError("the disk is gone")


def test_a_network_side_that_ends_is_told_and_counted(tmp_path: Path) -> None:
    clock, counters = SystemClock(), Counters()
    journal = Journal(MEMORY, clock)
    pool = Pool(journal, 1, 60.0, clock, counters)
    experience = Experience.around(pool, journal, clock, counters)
    membership = Membership(Config(), RunFolder(tmp_path), experience, counters)
    asyncio.run(membership.follow(Broken()))
    assert str(membership.failure) == "the disk is gone"
    assert counters.snapshot() == {"member_stopped": 1}
