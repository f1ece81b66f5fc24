"""What members tell people of themselves: asked for, checked, kept a while, never believed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from protocol.errors import ProtocolError
from protocol.identity import peer_id_of
from protocol.profile import Profile, open_profile
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff
from swarm.transport.transport import PeerUnreachable, Refused, Transport, TransportError

logger = logging.getLogger(__name__)

ASKED_AT_ONCE = 4
AGAIN_SECONDS = 3600.0
"""Between two questions to one that told."""
KEPT_SECONDS = 24 * 3600.0
"""What was told is shown for so long without being told again."""
MOST = 1024
"""Profiles kept; each takes some 2 KiB."""


class ProfileSource(Protocol):
    """How a peer is asked for its profile."""

    async def fetch_profile(self, peer: str) -> bytes:
        """The signed bytes, unchecked; errors as of :meth:`Transport.request`."""
        ...


@dataclass(frozen=True, slots=True)
class _Told:
    profile: Profile
    at: float


class Profiles:
    """Knows what connected members say of themselves, each under its own key alone.

    A peer that serves no profile is left alone for ever longer and nothing is held against it:
    most have none, and earlier programs know of none. An answer that does not hold, or is not the
    peer's own, is counted (``profiles_refused``) and makes what the peer told before forgotten.

    Args:
        ours: id of this node's swarm, 32 bytes.
        pause: seconds before a peer that did not tell is asked again; it doubles up to an hour.
    """

    def __init__(
        self,
        transport: Transport,
        source: ProfileSource,
        ours: bytes,
        clock: Clock,
        counters: Counters,
        pause: float,
    ) -> None:
        self._transport = transport
        self._source = source
        self._ours = ours
        self._clock = clock
        self._counters = counters
        longest = max(pause, AGAIN_SECONDS)
        self._silent: Backoff[str] = Backoff(clock, first=pause, longest=longest)
        self._told: dict[str, _Told] = {}

    async def look(self, is_member: Callable[[str], bool]) -> None:
        """Ask some of those connected now.

        Args:
            is_member: whether a peer is known to be in this swarm; others are not asked.
        """
        due = [
            peer
            for peer in self._transport.peers()
            if self._age(peer) >= AGAIN_SECONDS and not self._silent.waits(peer)
        ]
        await asyncio.gather(*map(self._ask, [p for p in due if is_member(p)][:ASKED_AT_ONCE]))

    def of(self, peer: str) -> Profile | None:
        """What a peer told within a day; None where it told nothing."""
        return self._told[peer].profile if self._age(peer) < KEPT_SECONDS else None

    def _age(self, peer: str) -> float:
        told = self._told.get(peer)
        return float("inf") if told is None else self._clock.monotonic() - told.at

    async def _ask(self, peer: str) -> None:
        try:
            author, profile = open_profile(await self._source.fetch_profile(peer), self._ours)
        except (PeerUnreachable, Refused) as error:
            pause = self._silent.failed(peer)
            logger.debug("peer %s tells no profile: %s; again after %g s", peer, error, pause)
        except (TransportError, ProtocolError) as error:
            self._refuse(peer, error.code, str(error))
        else:
            if peer_id_of(author) == peer:
                self._remember(peer, profile)
            else:
                self._refuse(peer, "other_author", f"it is signed by {peer_id_of(author)}")

    def _refuse(self, peer: str, reason: str, why: str) -> None:
        self._counters.add("profiles_refused", reason=reason)
        self._told.pop(peer, None)
        pause = self._silent.failed(peer)
        logger.info("the profile of %s is refused: %s; again after %g s", peer, why, pause)

    def _remember(self, peer: str, profile: Profile) -> None:
        self._silent.succeeded(peer)
        self._told.pop(peer, None)
        self._told[peer] = _Told(profile, self._clock.monotonic())
        if len(self._told) <= MOST:
            return
        # Those connected can be asked again, but would be at once: the new one has to wait instead.
        connected = set(self._transport.peers())
        forgotten = next((other for other in self._told if other not in connected), peer)
        del self._told[forgotten]
        if forgotten == peer:
            self._counters.add("profiles_without_room")
            self._silent.failed(peer)
