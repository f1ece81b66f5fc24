"""Members' profiles for people: requested, checked, cached, never trusted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import ProtocolError
from protocol.identity import peer_id_of
from protocol.profile import Profile, open_profile
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff
from swarm.exchange import Exchange
from swarm.transport.transport import PeerUnreachable, Refused, Transport, TransportError

logger = logging.getLogger(__name__)

MAX_PARALLEL = 4  # requests to peers
AGAIN_SECONDS = 3600.0  # between two requests to a peer that served its profile
KEPT_SECONDS = 24 * 3600.0  # how long a profile is shown without being served again
MOST = 1024  # profiles kept; each takes about 2 KiB


@dataclass(frozen=True, slots=True)
class _Served:
    profile: Profile
    at: float


class Profiles:
    """Profiles of connected members, each under its own key.

    A peer that serves no profile is asked ever less often, without a penalty: most peers have none,
    and earlier programs do not support it. An answer that is invalid, or is not the peer's own, is
    counted (``profiles_refused``), and the peer's earlier profile is deleted.

    Args:
        ours: id of this node's swarm, 32 bytes.
        pause: seconds before a peer without a profile is asked again; it doubles up to an hour.
    """

    def __init__(
        self,
        transport: Transport,
        exchange: Exchange,
        ours: bytes,
        clock: Clock,
        counters: Counters,
        pause: float,
    ) -> None:
        self._transport = transport
        self._exchange = exchange
        self._ours = ours
        self._clock = clock
        self._counters = counters
        longest = max(pause, AGAIN_SECONDS)
        self._silent: Backoff[str] = Backoff(clock, first=pause, longest=longest)
        self._served: dict[str, _Served] = {}

    async def look(self, is_member: Callable[[str], bool]) -> None:
        """Ask some connected peers for which ``is_member`` is true."""
        due = [
            peer
            for peer in self._transport.peers()
            if self._age(peer) >= AGAIN_SECONDS and not self._silent.waits(peer)
        ]
        await asyncio.gather(*map(self._ask, [p for p in due if is_member(p)][:MAX_PARALLEL]))

    def of(self, peer: str) -> Profile | None:
        """Return a peer's profile if served within a day, else None."""
        return self._served[peer].profile if self._age(peer) < KEPT_SECONDS else None

    def _age(self, peer: str) -> float:
        served = self._served.get(peer)
        return float("inf") if served is None else self._clock.monotonic() - served.at

    async def _ask(self, peer: str) -> None:
        try:
            author, profile = open_profile(await self._exchange.fetch_profile(peer), self._ours)
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
        self._served.pop(peer, None)
        pause = self._silent.failed(peer)
        logger.info("the profile of %s is refused: %s; again after %g s", peer, why, pause)

    def _remember(self, peer: str, profile: Profile) -> None:
        self._silent.succeeded(peer)
        self._served.pop(peer, None)
        self._served[peer] = _Served(profile, self._clock.monotonic())
        if len(self._served) <= MOST:
            return
        # Dropping a connected peer would only request its profile again immediately. So if all are
        # connected, the new one has to wait.
        connected = set(self._transport.peers())
        forgotten = next((other for other in self._served if other not in connected), peer)
        del self._served[forgotten]
        if forgotten == peer:
            self._counters.add("profiles_without_room")
            self._silent.failed(peer)
