"""What one member has of the swarm's experience, all of it in one journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from swarm.accounts import Accounts, RefusalHeard
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.journal import Journal
from swarm.outbox import Outbox
from swarm.pool import Pool
from swarm.refused_groups import RefusedGroups


@dataclass(frozen=True, slots=True)
class Experience:
    """What a member and its node have between them.

    Attributes:
        outbox: own groups on their way out, and the frames that are served.
        pool: external groups that were let in.
        accounts: what is remembered of each author.
        refused: external groups that were not let in of late.
    """

    journal: Journal
    pool: Pool
    outbox: Outbox
    accounts: Accounts
    refused: RefusedGroups = field(default_factory=RefusedGroups)

    @classmethod
    def around(
        cls,
        pool: Pool,
        journal: Journal,
        clock: Clock,
        counters: Counters,
        heard: RefusalHeard | None = None,
    ) -> Self:
        """A pool and what stands beside it in its journal.

        Args:
            heard: see :class:`swarm.accounts.Accounts`.
        """
        return cls(journal, pool, Outbox(journal, counters), Accounts(journal, clock, heard))
