"""Frames, announcements, the manifest and profiles: served to peers and requested from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from hashlib import sha256

from protocol import messages
from protocol.errors import ProtocolError
from protocol.identity import peer_id_of
from protocol.messages import MAX_GOSSIP, PullStatus
from protocol.profile import Profile, open_profile
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff, ByteBudget, Reputations, author_or_none
from swarm.directory import Directory
from swarm.publisher import Outbox
from swarm.reputation import Accounts
from swarm.transport.transport import (
    HEADER_SECONDS,
    MINIMUM_RATE,
    OPENING_SECONDS,
    RATE_GRACE_SECONDS,
    HandlerLimits,
    PeerUnreachable,
    Refusal,
    Refused,
    Transport,
    TransportError,
)

logger = logging.getLogger(__name__)

ANSWER_SECONDS = OPENING_SECONDS + HEADER_SECONDS + RATE_GRACE_SECONDS  # without the time for bytes
MISS_COST = 16_384  # bytes charged for a frame that is not here, for its database lookup
RECORD_COST = 32  # bytes charged per known record at least, for a search among all of them


class NotServed(TransportError):  # noqa: N818
    """A frame that the author lacks (``not_found``) or cannot serve now (``busy``)."""

    def __init__(self, status: PullStatus) -> None:
        self.code = status.name.lower()
        super().__init__(f"the author answered {self.code}")


class WrongContent(TransportError, code="wrong_content"):  # noqa: N818
    """Bytes that are not the requested ones."""


@dataclass(eq=False, repr=False)
class Exchange:
    """Serves frames, announcements, manifest and profile, and requests those of peers.

    At most ``upload_rate`` bytes per second. ``profile`` is signed bytes, or empty for none.
    """

    _transport: Transport
    _frames: Outbox
    _directory: Directory
    _manifest: bytes
    _accounts: Accounts
    _clock: Clock
    _counters: Counters
    _: KW_ONLY
    upload_rate: float
    profile: bytes = b""
    serves: InitVar[bool] = True

    def __post_init__(self, serves: bool) -> None:
        frame_size, manifest_size = self._directory.manifest.max_frame_bytes, len(self._manifest)
        largest = max(frame_size, messages.MAX_GOSSIP_RESPONSE_BYTES, manifest_size)
        reputations = Reputations(self._clock)
        reputations.use(self._accounts.reputation)
        self._budget = ByteBudget(self.upload_rate, largest, self._clock, reputations)
        if serves:
            self._serve()

    async def pull(
        self, author: bytes, content_id: bytes, size: int, minimum_rate: float = MINIMUM_RATE
    ) -> bytes:
        """Request the frame of that content id and size from its author.

        Raises ``NotServed``, ``WrongContent`` and the errors of :meth:`Transport.request`, which
        defines ``minimum_rate``.
        """
        answer = await self._transport.request(
            peer_id_of(author),
            messages.PULL_STREAM,
            content_id,
            limit=size + 1,
            deadline=ANSWER_SECONDS + size / minimum_rate,
            minimum_rate=minimum_rate,
        )
        self._accounts.count_bytes(author, received=len(answer))
        try:
            status, frame = messages.decode_pull_response(answer)
        except ProtocolError as error:
            raise WrongContent(f"malformed answer ({error.code})") from error
        if status is not PullStatus.OK:
            raise NotServed(status)
        if sha256(frame).digest() != content_id:
            raise WrongContent(f"{len(frame)} bytes with another hash than {content_id.hex()}")
        return frame

    async def gossip(self, peer: str, limit: int = MAX_GOSSIP) -> list[bytes]:
        """Request unchecked records of the current and previous time slots.

        Raises ``WrongContent`` and the errors of :meth:`Transport.request`.
        """
        after = max(0, self._directory.epoch - 2)
        query = messages.GossipRequest(after, limit, self._directory.digests(after))
        stream, max_bytes = messages.GOSSIP_STREAM, messages.MAX_GOSSIP_RESPONSE_BYTES
        request = messages.encode_gossip_request(query)
        answer = await self._transport.request(
            peer, stream, request, limit=max_bytes, deadline=ANSWER_SECONDS
        )
        try:
            return messages.decode_gossip_response(answer, limit)
        except ProtocolError as error:
            raise WrongContent(f"malformed gossip ({error.code})") from error

    def _serve(self) -> None:
        handle = self._transport.handle
        pulls = HandlerLimits(messages.CONTENT_ID_BYTES, concurrent=32, concurrent_per_peer=4)
        gossip = HandlerLimits(
            messages.MAX_GOSSIP_REQUEST_BYTES, concurrent=16, concurrent_per_peer=2
        )
        empty = HandlerLimits(0, concurrent=16, concurrent_per_peer=2)
        handle(messages.PULL_STREAM, self._on_pull, pulls)
        handle(messages.GOSSIP_STREAM, self._on_gossip, gossip)
        handle(messages.MANIFEST_STREAM, self._on_manifest, empty)
        if self.profile:
            handle(messages.PROFILE_STREAM, self._on_profile, empty)

    async def _on_pull(self, peer: str, request: bytes) -> bytes:
        try:
            content_id = messages.decode_pull_request(request)
        except ProtocolError as error:
            raise Refusal(error.code) from error
        # Checked before the database lookup, so refusals cost almost nothing.
        has_room = self._budget.has_room(peer, MISS_COST)
        frame = self._frames.get(content_id) if has_room else None
        cost = MISS_COST if frame is None else len(frame)
        if not has_room or not self._budget.take(peer, cost):
            self._counters.add("uploads_refused")
            return messages.encode_pull_response(PullStatus.BUSY)
        if frame is None:
            self._counters.add("pulls_missed")
            return messages.encode_pull_response(PullStatus.NOT_FOUND)
        if (author := author_or_none(peer)) is not None:
            self._accounts.count_bytes(author, sent=len(frame))
        return messages.encode_pull_response(PullStatus.OK, frame)

    async def _on_gossip(self, peer: str, request: bytes) -> bytes:
        try:
            query = messages.decode_gossip_request(request)
        except ProtocolError as error:
            raise Refusal(error.code) from error
        cost = RECORD_COST * self._directory.count_known()
        if not self._budget.has_room(peer, cost):
            raise self._over_budget()
        records = self._directory.recent(query.after, query.limit, set(query.known))
        return self._within_budget(peer, messages.encode_gossip_response(records), cost)

    async def _on_manifest(self, peer: str, request: bytes) -> bytes:
        return self._within_budget(peer, self._manifest)

    async def _on_profile(self, peer: str, request: bytes) -> bytes:
        return self._within_budget(peer, self.profile)

    def _within_budget(self, peer: str, answer: bytes, cost: int = 0) -> bytes:
        if not self._budget.take(peer, max(cost, len(answer))):
            raise self._over_budget()
        return answer

    def _over_budget(self) -> Refusal:
        self._counters.add("uploads_refused")
        return Refusal("over_budget")


async def fetch_manifest(transport: Transport, peer: str) -> bytes:
    """Request a peer's manifest, unopened; errors as in :meth:`Transport.request`."""
    stream, max_bytes = messages.MANIFEST_STREAM, messages.MAX_MANIFEST_RESPONSE_BYTES
    seconds = ANSWER_SECONDS + max_bytes / MINIMUM_RATE
    return await transport.request(peer, stream, b"", limit=max_bytes, deadline=seconds)


async def fetch_profile(transport: Transport, peer: str) -> bytes:
    """Request a peer's profile, unopened; errors as in :meth:`Transport.request`."""
    stream, max_bytes = messages.PROFILE_STREAM, messages.MAX_PROFILE_RESPONSE_BYTES
    return await transport.request(peer, stream, b"", limit=max_bytes, deadline=ANSWER_SECONDS)


MAX_PARALLEL = 4  # requests to peers for their swarm, and for their profile
AGAIN_SECONDS = 3600.0  # between two requests to a peer that served its profile
KEPT_SECONDS = 24 * 3600.0  # how long a profile is shown without being served again
MOST = 1024  # profiles kept; each takes about 2 KiB


@dataclass(eq=False, repr=False)
class Profiles:
    """Profiles of connected members, each under its own key.

    A peer that serves no profile is asked again after ``pause`` seconds, which doubles up to an
    hour, without a penalty. An answer that is invalid or not the peer's own is counted
    (``profiles_refused``), and the peer's earlier profile is deleted.
    """

    _transport: Transport
    _ours: bytes
    _clock: Clock
    _counters: Counters
    _pause: float

    def __post_init__(self) -> None:
        longest = max(self._pause, AGAIN_SECONDS)
        self._silent: Backoff[str] = Backoff(self._clock, first=self._pause, longest=longest)
        self._served: dict[str, tuple[Profile, float]] = {}  # with its monotonic time, seconds

    async def look(self, is_member: Callable[[str], bool]) -> None:
        """Ask some connected peers for which ``is_member`` is true."""
        peers = [
            peer
            for peer in self._transport.peers()
            if self._age(peer) >= AGAIN_SECONDS and not self._silent.waits(peer)
        ]
        await asyncio.gather(*map(self._ask, [p for p in peers if is_member(p)][:MAX_PARALLEL]))

    def of(self, peer: str) -> Profile | None:
        """Return a peer's profile if served within a day, else None."""
        return self._served[peer][0] if self._age(peer) < KEPT_SECONDS else None

    def _age(self, peer: str) -> float:
        _, since = self._served.get(peer, (None, float("-inf")))
        return self._clock.monotonic() - since

    async def _ask(self, peer: str) -> None:
        try:
            author, profile = open_profile(await fetch_profile(self._transport, peer), self._ours)
        except (PeerUnreachable, Refused) as error:
            pause = self._silent.failed(peer)
            logger.debug("peer %s sends no profile: %s; next request in %g s", peer, error, pause)
        except (TransportError, ProtocolError) as error:
            self._refuse(peer, error.code, str(error))
        else:
            if peer_id_of(author) == peer:
                self._remember(peer, profile)
            else:
                self._refuse(peer, "other_author", f"it is signed by {peer_id_of(author)}")

    def _refuse(self, peer: str, reason: str, detail: str) -> None:
        self._counters.add("profiles_refused", reason=reason)
        self._served.pop(peer, None)
        pause = self._silent.failed(peer)
        logger.info("the profile of %s is refused: %s; again after %g s", peer, detail, pause)

    def _remember(self, peer: str, profile: Profile) -> None:
        self._silent.succeeded(peer)
        self._served.pop(peer, None)
        self._served[peer] = profile, self._clock.monotonic()
        if len(self._served) <= MOST:
            return
        # Dropping a connected peer would only request its profile again: if all are, the new waits.
        connected = set(self._transport.peers())
        evicted_peer = next((other for other in self._served if other not in connected), peer)
        del self._served[evicted_peer]
        if evicted_peer == peer:
            self._counters.add("profiles_without_room")
            self._silent.failed(peer)
