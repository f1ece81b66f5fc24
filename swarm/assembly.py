"""Puts a member together from its parts, on whatever transport and clock it is given."""

from __future__ import annotations

import random

from protocol.frame import open_frame
from protocol.identity import Identity
from swarm.accounts import Accounts
from swarm.admission import Admission, Opener
from swarm.collector import CollectorLimits
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.known_peers import OwnFirst
from swarm.directory import Directory
from swarm.exchange import Exchange
from swarm.journal import Journal
from swarm.judge import Judge
from swarm.member import Member
from swarm.outbox import Outbox
from swarm.pool import Pool
from swarm.transport.transport import Transport


def assemble(
    transport: Transport,
    identity: Identity,
    signed_manifest: bytes,
    *,
    judge: Judge,
    journal: Journal,
    pool: Pool,
    outbox: Outbox,
    accounts: Accounts,
    clock: Clock,
    counters: Counters,
    limits: CollectorLimits,
    upload_rate: float,
    secret: bytes,
    rng: random.Random | None = None,
    threaded: bool = True,
    opener: Opener = open_frame,
) -> Member:
    """A member whose handlers and record check are installed in ``transport``.

    Call it on the loop that the member will run on, before others are served.

    Args:
        signed_manifest: of the swarm; it has been verified.
        judge: gives this node's own verdict on groups from outside.
        upload_rate: bytes a second served at most.
        secret: local bytes that make the shards read here unpredictable to others.
        rng: see :class:`swarm.member.Member`.
        threaded, opener: see :class:`swarm.admission.Admission`.
    """
    directory = Directory(
        transport, identity, signed_manifest, clock, secret, counters, accounts.standing
    )
    transport.use_validator(directory.check)
    transport.use_standing(OwnFirst(identity.author, accounts))
    exchange = Exchange(
        transport,
        outbox,
        directory,
        signed_manifest,
        accounts,
        clock,
        counters,
        upload_rate=upload_rate,
    )
    admission = Admission(
        directory.manifest,
        directory.swarm_id,
        judge,
        accounts,
        journal,
        clock,
        counters,
        threaded=threaded,
        opener=opener,
    )
    return Member(
        transport=transport,
        directory=directory,
        exchange=exchange,
        admission=admission,
        pool=pool,
        outbox=outbox,
        accounts=accounts,
        journal=journal,
        clock=clock,
        counters=counters,
        limits=limits,
        rng=rng,
    )
