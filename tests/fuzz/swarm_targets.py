"""Input of ``swarm`` from peers: records, streams, exchange, admission, journal."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_interface

from experiments.virtual_clock import VirtualClock
from protocol import messages
from protocol.errors import ProtocolError
from protocol.profile import open_profile
from protocol.rollout import Batch, encode_batch
from swarm.common.counters import Counters
from swarm.directory import Directory
from swarm.exchange import Exchange, fetch_profile
from swarm.groups import pack_pooled, unpack_pooled
from swarm.journal import Journal
from swarm.lan import SERVICE
from swarm.reputation import Accounts
from swarm.sightings import BadSighting, sightings_of, text_of
from swarm.transport.handshake import Handshake, NoPeer, identity_in
from swarm.transport.libp2p import calls as rpc
from swarm.transport.libp2p import introductions, relays
from swarm.transport.libp2p.dht import Libp2pDHT
from swarm.transport.peer_connections import DialReasons
from swarm.transport.protobuf import decode, encode
from swarm.transport.request_limits import PeerLimits, Service
from swarm.transport.streams import ask, serve
from swarm.transport.transport import HandlerLimits, PeerUnreachable, Refusal, TransportError
from tests.fuzz.target import Target, target, vectors
from tests.protocol import cases_profile, samples
from tests.protocol.samples import ALICE, MALLORY
from tests.swarm.admission_parts import Gate, Peer
from tests.swarm.experience_parts import START

_LOOP = asyncio.new_event_loop()
_LENGTH = (4).to_bytes(4, "big")


@target
def records() -> Target:
    """The serializer of the DHT, and the record gate behind it."""
    from hivemind.dht.storage import DictionaryDHTValue

    from swarm.transport.records import DictionaryRecord, RecordGate, StrictSerializer

    serializer = StrictSerializer(DictionaryDHTValue)
    gate = RecordGate(serializer, Counters())
    directory = _directory(_Captured())
    gate.check = directory.check

    def run(data: bytes) -> None:
        gate.validate(DictionaryRecord(data[:20], data[20:60], data, START))
        value = serializer.loads(data)
        if isinstance(value, DictionaryDHTValue):
            gate.prune(data[:20], value)
        serializer.dumps(value)

    full = DictionaryDHTValue()
    full.store(ALICE.author, samples.record({}), START + 60.0)
    seeds = (serializer.dumps(full), serializer.dumps(ALICE.author), *vectors("announcement"))
    # The serializer raises ValueError for undecodable bytes, TypeError for values it cannot pack.
    return Target("records", run, (ValueError, TypeError), seeds)


@target
def calls() -> Target:
    """Calls, answers, neighbors, relays and first messages that a libp2p node reads."""
    table = Libp2pDHT(ALICE.peer_id, _offline, Counters(), PeerLimits(VirtualClock(), Counters()))
    table.share.gate.check = _directory(_Captured()).check
    node_id = bytes(range(20))

    def run(data: bytes) -> None:
        for name in (rpc.PING, rpc.FIND, rpc.STORE):
            _tried(lambda name=name: _LOOP.run_until_complete(table.answer(name, "peer", data)))
        _tried(lambda: rpc.open_call(data))
        _tried(lambda: rpc.open_answer(data, b"id"))
        _tried(lambda: rpc.open_results(decode(data), 1, 20))
        _tried(lambda: introductions.listening_at(data, bytes.hex, 8))
        _tried(lambda: introductions.addresses_in(data, bytes.hex, 8))
        _tried(lambda: introductions.asked_for(data))
        _tried(lambda: relays.taken(data))
        _tried(lambda: relays.relayed(data))
        _tried(lambda: relays.reservation_seconds(data, 0))
        table.share.gate.records(node_id, data)

    record = table.share.record("key", ALICE.author, samples.record({}), START + 60.0)
    near = ((node_id, ALICE.peer_id), (bytes(20), MALLORY.peer_id))
    seeds = (
        rpc.pack_call(ALICE.peer_id, rpc.STORE, rpc.pack_store([record], node_id))[1],
        rpc.pack_store([record], node_id),
        rpc.pack_results([rpc.Result(record.value, START, near)], node_id),
        rpc.pack_answer(b"id", rpc.pack_stored([True], node_id)),
        introductions.reply([(b"peer", [b"address"])]),
        introductions.identification(b"key", [b"address"], ["/protocol"], b"seen"),
        relays.connect(ALICE.peer_id),
        encode({1: 2, 3: encode({1: 1 << 31}), 5: relays.OK}),
    )
    return Target("calls", run, (ValueError, OverflowError), seeds)


async def _offline(peer: str, name: str, request: bytes) -> bytes:
    raise PeerUnreachable("nobody is there")


def _tried(work: Callable[[], object]) -> None:
    with suppress(ValueError, OverflowError, ConnectionError, TransportError):
        work()


class _Captured:
    """A transport that records its handlers and returns a preset answer."""

    peer_id = MALLORY.peer_id

    def __init__(self) -> None:
        self.handlers = {}
        self.answer = b""

    def handle(self, protocol: str, handler, limits: HandlerLimits) -> None:
        self.handlers[protocol] = handler

    async def request(self, *_: object, limit: int, **__: object) -> bytes:
        return self.answer[:limit]


class _Wire:
    """The writing end of a stream without a reader."""

    def __init__(self) -> None:
        self.transport = self

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore the limits: there is no buffer."""

    def write(self, data: bytes) -> None:
        assert len(data) < 1 << 24

    async def drain(self) -> None:
        """Return immediately: nothing is buffered."""


def _directory(transport: _Captured) -> Directory:
    parts = transport, ALICE, samples.SIGNED, VirtualClock(samples.NOW), b"secret", Counters()
    return Directory(*parts, lambda author: 0.0)


def _exchange() -> tuple[_Captured, Exchange, Directory]:
    transport = _Captured()
    directory = _directory(transport)
    clock = VirtualClock(samples.NOW)
    accounts = Accounts(Journal(":memory:", clock), clock)
    frames: dict[bytes, bytes] = {bytes(32): samples.FRAME}
    parts = (transport, frames, directory, samples.SIGNED, accounts, clock, Counters())
    exchange = Exchange(*parts, upload_rate=1e9, profile=cases_profile.SIGNED)
    return transport, exchange, directory


def _reader(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(loop=_LOOP)
    reader.feed_data(data)
    reader.feed_eof()
    return reader


@target
def served() -> Target:
    """An incoming stream of any of the four protocols, and the handlers behind it."""
    transport, _, _ = _exchange()
    limits = {messages.PULL_STREAM: 32, messages.GOSSIP_STREAM: 64}
    limits |= dict.fromkeys((messages.MANIFEST_STREAM, messages.PROFILE_STREAM), 0)
    services = [
        Service(
            protocol,
            handler,
            HandlerLimits(limits[protocol], concurrent=4, concurrent_per_peer=4),
            Counters(),
            PeerLimits(VirtualClock(samples.NOW), Counters()),
        )
        for protocol, handler in transport.handlers.items()
    ]

    def run(data: bytes) -> None:
        service = services[data[0] % len(services)] if data else services[0]
        peer = MALLORY.peer_id if data[1:2] < b"\x80" else data[2:40].decode("latin-1")
        _LOOP.run_until_complete(serve(_reader(data[2:]), _Wire(), service, peer))

    gossip = messages.encode_gossip_request(messages.GossipRequest(0, 8))
    requests = (bytes(32), gossip, b"", b"\xff" * 32)
    framed = [len(request).to_bytes(4, "big") + request for request in requests]
    seeds = tuple(bytes([n, 0]) + request for n in range(4) for request in framed)
    return Target("served", run, (Refusal, TransportError), seeds, longest=512)


@target
def asked() -> Target:
    """The answer on a stream that the node opened."""

    def run(data: bytes) -> None:
        _LOOP.run_until_complete(ask(_reader(data), _Wire(), b"", peer="mallory", limit=1 << 16))

    seeds = (_LENGTH + b"abcd", _LENGTH + b"ab", bytes(4), b"\xff" * 8, b"")
    return Target("asked", run, (TransportError,), seeds, longest=512)


@target
def exchanged() -> Target:
    """Answers to pull, gossip and profile requests, and their contents."""
    transport, exchange, directory = _exchange()

    def run(data: bytes) -> None:
        transport.answer = data
        records: list[bytes] = []
        with suppress(TransportError):
            _LOOP.run_until_complete(exchange.pull(MALLORY.author, bytes(32), len(data)))
        with suppress(TransportError):
            records = _LOOP.run_until_complete(exchange.gossip(MALLORY.peer_id))
        for record in records:
            directory.accept(record)
        with suppress(TransportError, ProtocolError):
            told = _LOOP.run_until_complete(fetch_profile(transport, MALLORY.peer_id))
            open_profile(told, samples.SWARM)

    gossip = messages.encode_gossip_response([*vectors("announcement")[:4]])
    seeds = (b"\x00" + samples.FRAME, b"\x02", gossip, cases_profile.SIGNED)
    return Target("exchanged", run, (), seeds)


@target
def admitted() -> Target:
    """Any body under a valid signature, from admission to replay buffer entries."""
    gate = Gate()
    # Without this, penalties ban the author and later frames are not examined.
    gate.accounts.refuse = lambda author, reason, n: None  # type: ignore[method-assign]
    mallory = Peer(gate, MALLORY)

    def run(data: bytes) -> None:
        frame = samples.framed_body(data, MALLORY, gate.swarm_id)
        for pooled in gate.admission.examine(frame, MALLORY.author):
            again = unpack_pooled(pooled.author, pooled.received, pack_pooled(pooled))
            assert again == pooled, "unpacking returns the admitted group"

    groups = (mallory.group(0), mallory.group(1, ["right", "bug", "rewards:nan", "refuse:timeout"]))
    batch = Batch(1, 5, START, "tiny", b"\x02" * 32, 1.0, 16, groups)
    plain = encode_batch(batch)
    seed = b"\x00" + len(plain).to_bytes(4, "big") + plain
    return Target("admitted", run, (), (seed, mallory.frame(groups[0])[136:]))


@target
def journal_rows() -> Target:
    """A replay buffer row with corrupted contents."""
    gate = Gate()
    peer = Peer(gate)
    (pooled,) = gate.admission.examine(peer.frame(peer.group(0)), peer.author)

    def run(data: bytes) -> None:
        unpack_pooled(peer.author, START, data)

    return Target("journal_rows", run, (ProtocolError,), (pack_pooled(pooled),))


@target
def dial_reasons() -> Target:
    """p2pd's report of a failed dial, which contains text from the peer."""
    reasons = DialReasons()

    def run(data: bytes) -> None:
        assert isinstance(reasons.of("a", OSError(data.decode("latin-1"))), str)

    seed = b"* [/ip4/1.2.3.4/tcp/1] dial tcp4 1.2.3.4:1: connect: connection refused"
    relayed = b"* [/x] error opening relay circuit: NO_RESERVATION (204)"
    return Target("dial_reasons", run, (), (seed, relayed), longest=512)


@target
def handshakes() -> Target:
    """Mallory's answer to a dial: the second handshake message or its bare payload."""

    def run(data: bytes) -> None:
        if data[:1] == b"\x00":
            Handshake().peer_of(data[1:])
        else:
            identity_in(data[1:])

    key = b"\x0a\x24\x08\x01\x12\x20" + bytes(32)
    seeds = (bytes(201), b"\x01" + key + b"\x12\x40" + bytes(64))
    return Target("handshakes", run, (NoPeer, ValueError), seeds)


@target
def announced() -> Target:
    """A name announced on the local network: its bytes and those of its records."""
    from zeroconf import BadTypeInNameException, ServiceInfo

    here = (ip_interface("192.168.7.2/24"),)

    def run(data: bytes) -> None:
        length = int.from_bytes(data[:1], "big")
        name, text = data[1 : 1 + length], data[1 + length :]
        told = f"{name.decode('utf-8', 'replace')}.{SERVICE}"
        info = ServiceInfo(SERVICE, told, properties=text)
        sightings_of(info.properties, int.from_bytes(text[:2], "big"), ["192.168.7.9"], here)

    entries = [b"%b=%b" % pair for pair in text_of(ALICE.peer_id, bytes(32)).items()]
    good = b"".join(bytes([len(each)]) + each for each in entries)
    seeds = (b"\x04anna" + good, b"\x00" + good[:40], b"\x01.\x00")
    return Target("announced", run, (BadSighting, BadTypeInNameException), seeds)
