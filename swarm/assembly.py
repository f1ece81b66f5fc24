"""Puts a member together from its parts, on whatever transport and clock it is given."""

from __future__ import annotations

import random

from protocol.announcement import Opener, open_announcement
from protocol.identity import Identity
from protocol.profile import Profile, sign_profile
from swarm.collector import Admission, CollectorLimits
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.known_peers import OwnFirst
from swarm.directory import Directory
from swarm.exchange import Exchange
from swarm.experience import Experience
from swarm.member import Member
from swarm.transport.transport import Transport


def assemble(
    transport: Transport,
    identity: Identity,
    signed: bytes,
    admission: Admission,
    experience: Experience,
    *,
    clock: Clock,
    counters: Counters,
    limits: CollectorLimits,
    upload_rate: float,
    secret: bytes,
    rng: random.Random | None = None,
    opener: Opener = open_announcement,
    profile: Profile | None = None,
    quiet: bool = False,
) -> Member:
    """A member whose handlers and record check are installed in ``transport``.

    Call it on the loop that the member will run on, before others are served.

    Args:
        signed: the swarm's manifest; it has been verified.
        limits, rng: see :class:`swarm.collector.Collector`.
        upload_rate: see :class:`swarm.exchange.Exchange`.
        secret, opener: see :class:`swarm.directory.Directory`.
        profile: what this node tells of itself; None: nothing.
        quiet: whether nothing is announced and nothing served: one that looks on is no member.
    """
    accounts, outbox = experience.accounts, experience.outbox
    directory = Directory(
        transport, identity, signed, clock, secret, counters, accounts.standing, opener
    )
    transport.use_validator(directory.check)
    transport.use_standing(OwnFirst(identity.author, accounts))
    exchange = Exchange(
        transport,
        outbox,
        directory,
        signed,
        accounts,
        clock,
        counters,
        upload_rate=upload_rate,
        profile=sign_profile(profile, identity, directory.swarm_id) if profile else b"",
        serves=not quiet,
    )
    return Member(
        transport,
        directory,
        exchange,
        admission,
        experience,
        clock,
        counters,
        limits,
        rng,
        quiet=quiet,
    )
