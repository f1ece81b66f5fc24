"""The network as the swarm sees it: small signed records to all, request and answer to one.

Three implementations keep this contract: :mod:`swarm.transport.hivemind.transport` over real p2p
daemons, :mod:`swarm.transport.libp2p.node` without one, and :mod:`swarm.transport.memory`
inside a process on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple, Protocol

from protocol.codec import MAX_RECORD_BYTES
from protocol.messages import DialledBack
from swarm.common.fair_limits import Standing


class Timing(NamedTuple):
    """What one call of a peer told.

    Attributes:
        round_trip: seconds from the call to its answer.
        ahead: seconds by which the peer's clock is ahead of this machine's, give or take half of
            ``round_trip`` (RFC 5905, section 8).
    """

    round_trip: float
    ahead: float


Way = Literal["direct", "relayed", "unreachable", "unknown"]
"""Dialled at its own address; through another peer; not at all; nobody has tried yet."""

CIRCUIT = "/p2p-circuit"


@dataclass(frozen=True, slots=True)
class Reach:
    """How others reach this node, and it them.

    Attributes:
        way: how others reach it.
        cause: why it is so, in one line; empty while unknown.
        remedy: what would make it direct; empty where it is.
        links: how each connected peer is reached, by peer id.
        timings: how far away each is and how its clock goes, where that was measured.
    """

    way: Way = "unknown"
    cause: str = ""
    remedy: str = ""
    links: Mapping[str, Way] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)


def reach_of(state: Mapping[str, Any]) -> Reach:
    """What :func:`dataclasses.asdict` made of one, by way of another process."""
    timings = {peer: Timing(*timing) for peer, timing in state.get("timings", {}).items()}
    return Reach(**{**state, "timings": timings})


def is_relayed(address: str) -> bool:
    """Whether a multiaddress leads through a relay."""
    return CIRCUIT in address


def host_of(address: str) -> str:
    """The IP address that a multiaddress begins with; empty when it begins with none."""
    _, family, host, *_ = [*address.split("/"), "", "", ""]
    return host if family in ("ip4", "ip6") else ""


def port_of(address: str) -> int:
    """The TCP port that a multiaddress names first; 0 when it names none."""
    _, _, _, kind, port, *_ = [*address.split("/"), "", "", "", "", ""]
    return int(port) if kind == "tcp" and port.isdecimal() else 0


def links_of(connected: Mapping[str, Sequence[str]]) -> dict[str, Way]:
    """How each peer is connected, by its addresses; direct where any connection is."""
    return {
        peer: "relayed" if all(map(is_relayed, addresses)) else "direct"
        for peer, addresses in connected.items()
    }


def dialled(answers: Sequence[DialledBack]) -> bool:
    """Whether a node can be dialled, by what its peers say who tried.

    Peers that saw it at a public address count alone where there are any: others are on this side
    of its router. Half of them have to have reached it, so that one liar among three decides
    nothing.
    """
    outside = [answer for answer in answers if ip_address(answer.host).is_global]
    counted = outside or answers
    return 2 * sum(bool(answer.open) for answer in counted) >= len(counted)


def told(way: Way, ports: Sequence[int], hosts: Sequence[str], relays: int) -> Reach:
    """The state in words that a person can act on.

    Args:
        ports: that the node listens on or announces.
        hosts: the addresses that it was seen at.
        relays: peers that relay for it.
    """
    port, seen = ports[0] if ports else 0, " and ".join(dict.fromkeys(hosts))
    if way == "direct":
        return Reach(way, f"peers dialled it at {seen}")
    if way == "unknown":
        return Reach(way, "no peer has tried to dial it yet")
    through = f"{relays} of its peers relay{'s' if relays == 1 else ''} for it"
    cause = f"no peer could dial {seen} at TCP port {port}"
    remedy = (
        f"Have the router forward TCP port {port} to this machine and the firewall let it in; "
        "fix the port in network.listen."
    )
    if way == "relayed":
        return Reach(way, f"{cause}; {through}", remedy)
    return Reach(way, f"{cause}; no peer relays for it yet, so that it only asks", remedy)


# The names say what happened and need no suffix.
# ruff: noqa: N818


RECORD_LIMIT = MAX_RECORD_BYTES
"""Bytes of a record's value. Larger ones poison the hash table of whoever stores them."""

MINIMUM_RATE = 4096.0
"""Bytes a second below which an answer is given up."""

RATE_GRACE_SECONDS = 2.0
"""Time before the minimum rate is asked for: a distant peer's round trips and its disk."""

HEADER_SECONDS = 3.0
"""For an answer to begin, once the stream is open."""

OPENING_SECONDS = 5.0
"""For a stream to open, its peer dialled first where need be."""

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(peer id, request) -> answer; raises :class:`Refusal` to decline."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the handler of a protocol takes on.

    Attributes:
        request_bytes: of the largest request.
        concurrent: requests at a time.
        concurrent_per_peer: those of one peer.
    """

    request_bytes: int
    concurrent: int
    concurrent_per_peer: int


class TransportError(Exception):
    """Something the network did not do. The message ends in what to do about it."""

    code = "transport"


class PeerUnreachable(TransportError):
    """No connection to the peer, or it broke."""

    code = "unreachable"


class DeadlineExceeded(TransportError):
    """The answer was not complete in time."""

    code = "deadline"


class TooSlow(TransportError):
    """The answer came in below the minimum rate."""

    code = "too_slow"


class ResponseTooLarge(TransportError):
    """The peer declared an answer over the caller's limit; none of it was read."""

    code = "response_too_large"


class Refused(TransportError):
    """The peer closed the stream without an answer: it is busy, or will not."""

    code = "refused"


class ClockSkew(TransportError):
    """This machine's clock and the swarm's disagree."""

    code = "clock_skew"


class RecordTooLarge(TransportError):
    """A record over :data:`RECORD_LIMIT` was to be stored."""

    code = "record_too_large"


def check_size(value: bytes) -> None:
    """Raises :class:`RecordTooLarge` for a record over :data:`RECORD_LIMIT`."""
    if len(value) > RECORD_LIMIT:
        raise RecordTooLarge(
            f"record of {len(value)} bytes, limit {RECORD_LIMIT}; offer fewer frames"
        )


class Refusal(Exception):
    """Raised by a handler to decline a request; ``reason`` (snake_case) is counted, not sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as a node of the hash table meets it.

    Attributes:
        key: the **hashed** record key (:func:`protocol.announcement.dht_key_of`).
        subkey: as stored; an author's public key in this protocol.
        value: at most :data:`RECORD_LIMIT` bytes.
        expiry: unix time, seconds.
    """

    key: bytes
    subkey: bytes
    value: bytes
    expiry: float


RecordCheck = Callable[[RecordView], bool]


class Transport(Protocol):
    """One peer's access to the network. Every coroutine runs on one event loop."""

    @property
    def peer_id(self) -> str:
        """Base58 libp2p peer id."""
        ...

    @property
    def bytes_in(self) -> int:
        """Payload bytes received in requests and answers."""
        ...

    @property
    def bytes_out(self) -> int:
        """Payload bytes sent in requests and answers."""
        ...

    async def start(self) -> None:
        """Join the network, alone when nobody answers.

        Raises:
            TransportError: cannot run at all (port taken, daemon missing, clock off).
        """
        ...

    async def close(self) -> None:
        """Leave; nothing of it remains on the machine. May be called twice."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """Full multiaddresses, ``/p2p/<peer id>`` included, that others can dial."""
        ...

    async def connect(self, address: str) -> str:
        """Dial a full multiaddress; returns the peer id.

        Raises:
            PeerUnreachable, ClockSkew
        """
        ...

    def peers(self) -> tuple[str, ...]:
        """Connected peers' ids, sorted, self excluded."""
        ...

    def reach(self) -> Reach:
        """Whether others can dial this peer, and how it is connected with each."""
        ...

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Put a record into the hash table; False when no replica took it.

        A record gives way only to one with a strictly later ``expiry`` (unix seconds).

        Raises:
            RecordTooLarge
        """
        ...

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Values by subkey, checked by the validator; empty when nothing is there."""
        ...

    def watch(self, keys: Collection[str], heard: Callable[[bytes], None]) -> None:
        """Hear of records that others store with this peer under ``keys``, and no other keys.

        A hint that may fail to come: a peer holds few of all records, and tells of
        :data:`swarm.transport.records.MAX_TOLD` at most.

        Args:
            heard: called on the loop with the value of each that the validator let in; it must
                not raise.
        """
        ...

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
        """Ask one peer and await its whole answer.

        Args:
            limit: bytes of answer accepted.
            deadline: seconds from now. The stream has :data:`OPENING_SECONDS` of them, the
                answer's beginning :data:`HEADER_SECONDS`.
            minimum_rate: bytes a second, asked for after :data:`RATE_GRACE_SECONDS`.

        Raises:
            PeerUnreachable, DeadlineExceeded, TooSlow, ResponseTooLarge, Refused
        """
        ...

    def handle(self, protocol: str, handler: Handler, limits: Limits) -> None:
        """Serve ``protocol``; requests over the limits are refused as ``busy`` or ``too_large``."""
        ...

    def use_validator(self, check: RecordCheck) -> None:
        """Check every record stored with or read by this peer. Before it is set, none passes."""
        ...

    def use_standing(self, standing: Standing) -> None:
        """Keep a share of what is bounded for authors of good standing; before, nobody is known."""
        ...
