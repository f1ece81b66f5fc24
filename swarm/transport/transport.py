"""The transport interface: signed records for all peers, requests to single peers.

It is implemented in :mod:`swarm.transport.hivemind.transport` over p2p daemons and in
:mod:`swarm.transport.libp2p.node` without one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from protocol.codec import MAX_RECORD_BYTES
from protocol.messages import DialledBack
from swarm.common.fair_limits import ReputationOf


class Timing(NamedTuple):
    """Round trip of one call to a peer, and the offset of the peer's clock."""

    round_trip: float  # seconds from the call to its answer
    ahead: float  # of this machine's clock: seconds, +- round_trip / 2 (RFC 5905, section 8)


Way = Literal["direct", "relayed", "unreachable", "unknown"]
"""Dialed at its own address; through a relay; not at all; not tried yet."""

CIRCUIT = "/p2p-circuit"


@dataclass(frozen=True, slots=True)
class Reach:
    """Reachability of this node and of its peers, by peer id."""

    way: Way = "unknown"  # how peers reach this node
    cause: str = ""  # why, in one line; empty while unknown
    remedy: str = ""  # how to become direct; empty if direct
    links: Mapping[str, Way] = field(default_factory=dict)  # how each connected peer is reached
    timings: Mapping[str, Timing] = field(default_factory=dict)


def reach_of(state: Mapping[str, Any]) -> Reach:
    """Restore a :class:`Reach` from its :func:`dataclasses.asdict` form."""
    timings = {peer: Timing(*timing) for peer, timing in state.get("timings", {}).items()}
    return Reach(**{**state, "timings": timings})


def is_relayed(address: str) -> bool:
    """Return whether a multiaddress leads through a relay."""
    return CIRCUIT in address


def host_of(address: str) -> str:
    """Return the IP address that a multiaddress begins with, or an empty string."""
    parts = address.split("/")
    return parts[2] if len(parts) > 2 and parts[1] in ("ip4", "ip6") else ""


def port_of(address: str) -> int:
    """Return the TCP port that a multiaddress names first, or 0."""
    parts = address.split("/")
    return int(parts[4]) if len(parts) > 4 and parts[3] == "tcp" and parts[4].isdecimal() else 0


def own_ports(addresses: Iterable[str]) -> tuple[int, ...]:
    """Return the different TCP ports of addresses that lead through no relay."""
    ports = (port_of(address) for address in addresses if not is_relayed(address))
    return tuple(dict.fromkeys(port for port in ports if port))


def links_of(connected: Mapping[str, Sequence[str]]) -> dict[str, Way]:
    """Return how each peer is connected; direct if any connection is, or none is known."""
    return {
        peer: "relayed" if addresses and all(map(is_relayed, addresses)) else "direct"
        for peer, addresses in connected.items()
    }


def dialed(answers: Sequence[DialledBack]) -> bool:
    """Return whether at least half of the peers that tried could dial a node.

    If any peers saw it at a public address, only these count: the others share its router.
    """
    public = [answer for answer in answers if ip_address(answer.host).is_global]
    relevant = public or answers
    return 2 * sum(bool(answer.open) for answer in relevant) >= len(relevant)


def describe_reach(way: Way, ports: Sequence[int], hosts: Sequence[str], relays: int) -> Reach:
    """Explain how peers reach a node at ``ports``, seen at ``hosts``, with so many relays."""
    port, host_text = ports[0] if ports else 0, " and ".join(dict.fromkeys(hosts))
    if way == "direct":
        return Reach(way, f"peers dialed it at {host_text}")
    if way == "unknown":
        return Reach(way, "no peer has tried to dial it yet")
    relay_text = f"{relays} of its peers relay{'s' if relays == 1 else ''} for it"
    cause = f"no peer could dial {host_text} at TCP port {port}"
    remedy = (
        f"Forward TCP port {port} of the router to this machine and open it in the firewall; set "
        "a fixed port in network.listen."
    )
    if way == "relayed":
        return Reach(way, f"{cause}; {relay_text}", remedy)
    return Reach(way, f"{cause}; no peer relays for it yet, so that it only asks", remedy)


# The names say what happened and need no suffix.
# ruff: noqa: N818

RECORD_LIMIT = MAX_RECORD_BYTES  # larger values poison the DHT of nodes that store them
MINIMUM_RATE = 4096.0  # bytes per second below which an answer is aborted
RATE_GRACE_SECONDS = 2.0  # before the minimum rate applies: a distant peer's round trips and disk
HEADER_SECONDS = 3.0  # for an answer to begin, once the stream is open
OPENING_SECONDS = 5.0  # for a stream to open, including the dial if needed

Handler = Callable[[str, bytes], Awaitable[bytes]]  # (peer id, request) -> answer, or ``Refusal``


@dataclass(frozen=True, slots=True)
class HandlerLimits:
    """Limits of a protocol's handler."""

    request_bytes: int  # maximum size of a request
    concurrent: int  # simultaneous requests
    concurrent_per_peer: int


class TransportError(Exception):
    """A network failure. The message may end with ``; `` and what to do about it."""

    code = "transport"
    by_code: ClassVar[dict[str, type[TransportError]]] = {}  # subclasses that set a code

    def __init_subclass__(cls, code: str = "") -> None:
        cls.code = code or cls.code
        if code:
            cls.by_code[code] = cls

    def parts(self) -> tuple[str, str]:
        """Return the cause and what to do, each in one line; the latter may be empty."""
        line = " ".join(str(self).split())
        cause, _, remedy = line.rpartition("; ")
        return (cause, f"{remedy[:1].upper()}{remedy[1:]}.") if cause else (line, "")


class PeerUnreachable(TransportError, code="unreachable"):
    """No connection to the peer, or it broke."""


class DeadlineExceeded(TransportError, code="deadline"):
    """The answer was not complete in time."""


class TooSlow(TransportError, code="too_slow"):
    """The answer arrived below the minimum rate."""


class ResponseTooLarge(TransportError, code="response_too_large"):
    """The peer declared an answer over the caller's limit; none of it was read."""


class Refused(TransportError, code="refused"):
    """The peer closed the stream without an answer: it is busy or declined."""


class ClockSkew(TransportError, code="clock_skew"):
    """The clocks of this machine and the swarm disagree."""


class RecordTooLarge(TransportError, code="record_too_large"):
    """A record to store exceeds :data:`RECORD_LIMIT`."""


def check_size(value: bytes) -> None:
    """Raise :class:`RecordTooLarge` for a record over :data:`RECORD_LIMIT`."""
    if len(value) > RECORD_LIMIT:
        problem = f"record of {len(value)} bytes, limit {RECORD_LIMIT}"
        raise RecordTooLarge(f"{problem}; offer fewer frames")


class Refusal(Exception):
    """A handler's refusal; ``reason`` (snake_case) is counted, not sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as a DHT node receives it."""

    key: bytes  # hashed by protocol.announcement.dht_key_of
    subkey: bytes  # as stored; an author's public key in this protocol
    value: bytes  # at most RECORD_LIMIT bytes
    expiry: float  # unix time, seconds


RecordCheck = Callable[[RecordView], bool]


class Transport(Protocol):
    """One peer's access to the network. Every coroutine runs on one event loop."""

    @property
    def peer_id(self) -> str:
        """Base58 libp2p peer id."""

    @property
    def bytes_in(self) -> int:
        """Payload bytes received in requests and answers."""

    @property
    def bytes_out(self) -> int:
        """Payload bytes sent in requests and answers."""

    async def start(self) -> None:
        """Join the network; continue alone if no peer answers.

        Raises :class:`TransportError` if it cannot run (port taken, daemon missing, clock off).
        """

    async def close(self) -> None:
        """Leave the network and clean up the machine; may be called twice."""

    def addresses(self) -> tuple[str, ...]:
        """Return full multiaddresses, with ``/p2p/<peer id>``, that others can dial."""

    async def connect(self, address: str) -> str:
        """Dial a full address; return the id or raise ``PeerUnreachable``, ``ClockSkew``."""

    def peers(self) -> tuple[str, ...]:
        """Return the sorted ids of connected peers, without this one."""

    def reach(self) -> Reach:
        """Return whether others can dial this peer, and how it is connected to each."""

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Put a record into the DHT; return False if no replica took it.

        Only a strictly later ``expiry`` (unix seconds) replaces it. Raises ``RecordTooLarge``.
        """

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Return validated values by subkey; empty if there are none."""

    def watch(self, keys: Collection[str], heard: Callable[[bytes], None]) -> None:
        """Report validated records that others store with this peer under ``keys`` only.

        Reports may be missing: a peer stores few of all records, and reports at most
        :data:`swarm.transport.records.MAX_REPORTS`. ``heard`` runs on the loop and must not raise.
        """

    async def request(
        self,
        peer: str,
        protocol: str,
        payload: bytes,
        *,
        limit: int,
        deadline: float,
        minimum_rate: float = MINIMUM_RATE,
    ) -> bytes:
        """Send a request to one peer and return its whole answer.

        Args:
            limit: maximum bytes of the answer.
            deadline: seconds; the stream opens in :data:`OPENING_SECONDS`, the answer begins in
                :data:`HEADER_SECONDS`.
            minimum_rate: bytes per second, enforced after :data:`RATE_GRACE_SECONDS`.

        Raises ``PeerUnreachable, DeadlineExceeded, TooSlow, ResponseTooLarge`` or ``Refused``.
        """

    def handle(self, protocol: str, handler: Handler, limits: HandlerLimits) -> None:
        """Serve ``protocol``; refuse excess requests as ``busy`` or ``too_large``."""

    def use_validator(self, check: RecordCheck) -> None:
        """Check every record stored or read; before this call, none passes."""

    def use_reputation(self, reputation: ReputationOf) -> None:
        """Reserve a share of limits for known authors; before, no author is known."""
