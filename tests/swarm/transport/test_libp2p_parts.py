"""Parts of a libp2p node that decide which peers and messages it accepts."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from types import SimpleNamespace

import pytest
from hivemind.proto import dht_pb2, p2pd_pb2
from hypothesis import given
from hypothesis import strategies as st

from experiments.virtual_clock import VirtualClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.dht import SAME_ID_SECONDS
from swarm.transport.libp2p import addresses, calls
from swarm.transport.libp2p import introductions as told
from swarm.transport.libp2p.addresses import HostPort, address_of, peer_id_bytes, place_of, seen_at
from swarm.transport.libp2p.calls import PING, Dictionary, Result, Shelf
from swarm.transport.libp2p.dht import Libp2pDHT, RoutingTable, distance
from swarm.transport.libp2p.introductions import MOST_EACH, Book
from swarm.transport.libp2p.stack import HEADER, NotSpoken, accept, propose
from swarm.transport.protobuf import decode, encode, varint
from swarm.transport.records import DictionaryRecord
from swarm.transport.request_limits import CallBudget, PeerLimits
from swarm.transport.search import BUCKET, MOST_ASKED
from swarm.transport.transport import PeerUnreachable, Refused
from tests.swarm.network_parts import identity
from tests.swarm.transport.mallory import line

OWN = bytes(20)
PEERS = [identity(f"peer {n}").peer_id for n in range(8)]


def node(number: int, far: bool = True) -> bytes:
    return (bytes([0x80 if far else 0x01])) + number.to_bytes(19, "big")


def table(clock: VirtualClock | None = None) -> tuple[RoutingTable, Counters]:
    counters = Counters()
    return RoutingTable(OWN, PeerLimits(clock or VirtualClock(), counters), counters), counters


async def test_peer_with_many_ids_gets_one_routing_table_entry(clock) -> None:
    known, counters = table(clock)
    for n in range(500):
        known.seen(node(n), "flo")
    assert (len(known), counters.snapshot()["routing_refused"]) == (1, 499)
    await clock.advance(SAME_ID_SECONDS)
    known.seen(node(1000), "flo")
    assert known.nearest(OWN, 20) == [(node(1000), "flo")]


def test_peer_cannot_take_over_another_nodes_id() -> None:
    known, counters = table()
    known.seen(node(1), "ben")
    known.seen(node(1), "mallory")
    known.seen(OWN, "mallory")
    assert known.nearest(OWN, 20) == [(node(1), "ben")]
    assert counters.snapshot()["routing_refused"] == 2


def test_waiting_peers_are_bounded_and_replace_departed_peers() -> None:
    known, _ = table()
    asked = {known.seen(node(n), f"sybil {n}") for n in range(3000)}
    assert len(known) == BUCKET
    assert asked == {None, (node(0), "sybil 0")}
    known.forget("sybil 0")
    assert (node(2999), "sybil 2999") in known.nearest(OWN, BUCKET)
    assert len(known) == BUCKET


async def test_waiting_peer_with_many_ids_gets_one_entry_and_is_fully_removed(clock):
    known, _ = table(clock)
    for n in range(BUCKET):
        known.seen(node(n), f"honest {n}")
    known.seen(node(100), "ben")
    for n in (101, 102, 103):
        await clock.advance(SAME_ID_SECONDS)
        known.seen(node(n), "mallory")
    for n in range(3):
        known.forget(f"honest {n}")
    peers = [peer for _, peer in known.nearest(OWN, 2 * BUCKET)]
    assert peers.count("mallory") == 1
    assert "ben" in peers
    known.forget("mallory")
    assert "mallory" not in [peer for _, peer in known.nearest(OWN, 2 * BUCKET)]


async def test_refused_routing_ids_trigger_no_record_scan() -> None:
    server, _, counters = answering(lambda peer: ())
    server.share.gate.check = lambda record: True
    server.share.keep(server.share.record("key", b"anna", b"value", time.time() + 60.0))
    scans = []
    keys = server.share.held_keys
    server.share.held_keys = lambda: scans.append(1) or keys()
    for n in range(100):
        await server.answer(PING, "flo", encode({2: calls.pack_node(node(n))}))
    assert (scans, counters.snapshot()["routing_refused"]) == ([1], 99)


def test_nearest_nodes_are_sorted_and_exclude_the_asker() -> None:
    known, _ = table()
    for n in range(1, 8):
        known.seen(node(n, far=n % 2 == 0), PEERS[n])
    near = known.nearest(node(3, far=False), 5, asker=PEERS[3])
    assert PEERS[3] not in [peer for _, peer in near]
    gaps = [distance(node(3, far=False), node_id) for node_id, _ in near]
    assert gaps == sorted(gaps) and len(gaps) == 5


@given(st.sets(st.integers(1, (1 << 160) - 1), max_size=60), st.integers(0, (1 << 160) - 1))
def test_nearest_nodes_are_those_of_the_smallest_distance(ids: set[int], key: int) -> None:
    known, _ = table()
    for number in ids:
        for bits in (0, 120, 155):
            known.seen((number >> bits).to_bytes(20, "big"), f"peer {number >> bits}")
    wanted = key.to_bytes(20, "big")
    nodes = sorted(known.nearest(OWN, 999), key=lambda pair: distance(wanted, pair[0]))
    assert known.nearest(wanted, 9) == nodes[:9]


def test_messages_match_the_hivemind_schema() -> None:
    near = tuple((node(n), PEERS[n]) for n in range(3))
    results = [Result(b"value", 7.5, near), Result(None, 0.0, ())]
    packed = calls.pack_results(results, OWN)
    found = dht_pb2.FindResponse.FromString(packed)
    assert found.peer.node_id == OWN
    assert [each.type for each in found.results] == [dht_pb2.FOUND_DICTIONARY, dht_pb2.NOT_FOUND]
    assert (found.results[0].value, found.results[0].expiration_time) == (b"value", 7.5)
    assert list(found.results[0].nearest_node_ids) == [each for each, _ in near]
    assert list(found.results[0].nearest_peer_ids) == [peer_id_bytes(peer) for _, peer in near]
    assert calls.open_results(decode(found.SerializeToString()), 2, 20) == results
    records = [DictionaryRecord(node(n), b"sub", b"val", 1.0 + n) for n in range(2)]
    asked = dht_pb2.StoreRequest.FromString(calls.pack_store(records, OWN))
    assert calls.open_store(decode(asked.SerializeToString())) == records
    assert list(asked.expiration_time) == [1.0, 2.0]
    done = dht_pb2.StoreResponse(store_ok=[True, False], peer=dht_pb2.NodeInfo(node_id=OWN))
    assert calls.open_stored(decode(done.SerializeToString())) == [True, False]
    assert calls.node_of(decode(done.SerializeToString()), 3) == OWN
    call_id, call = calls.pack_call(PEERS[0], calls.PING, b"request")
    assert calls.open_call(call) == (call_id, b"request")
    read = p2pd_pb2.PersistentConnectionRequest.FromString(call)
    assert (read.callId, read.callUnary.proto) == (call_id, calls.PING)
    assert (read.callUnary.peer, read.callUnary.data) == (peer_id_bytes(PEERS[0]), b"request")


@pytest.mark.parametrize("length", [1, 19, 21, 64])
def test_peer_with_a_wrong_id_length_is_a_client(length: int) -> None:
    assert calls.node_of({2: [calls.pack_node(bytes(length))]}, 2) is None


def test_error_or_mismatched_answer_is_refused() -> None:
    with pytest.raises(Refused, match="over budget"):
        calls.open_answer(calls.pack_error(b"id", "over budget"), b"id")
    with pytest.raises(Refused, match="another call"):
        calls.open_answer(calls.pack_answer(b"id", b"response"), b"other")
    assert calls.open_answer(calls.pack_answer(b"id", b"response"), b"id") == b"response"


MANY = (node(1), b"s", b"v", 1.0, False)


@pytest.mark.parametrize(
    "nonsense",
    [
        encode({2: [node(1)], 3: [b"s"], 4: [], 5: [1.0], 6: [False]}),
        encode({2: [node(1)], 3: [b"s"], 4: [b"v"], 5: [1.0]}),
        encode({2: [b"short"], 3: [b"s"], 4: [b"v"], 5: [1.0], 6: [False]}),
        encode(dict(zip(range(2, 7), ([each] * 300 for each in MANY), strict=True))),
        encode({2: 1}),
        b"\xff" * 64,
    ],
)
def test_malformed_store_request_is_refused(nonsense: bytes) -> None:
    with pytest.raises(ValueError):
        calls.open_store(decode(nonsense))


def answering(answer: Callable[[str], tuple]) -> tuple[Libp2pDHT, list[str], Counters]:
    """Return a DHT, its queried peers and counters; ``answer`` gives neighbors."""
    asked: list[str] = []
    counters = Counters()

    async def call(peer: str, name: str, request: bytes) -> bytes:
        if name == calls.PING:
            return encode({2: calls.pack_node(node(1))})
        asked.append(peer)
        return calls.pack_results([Result(None, 0.0, answer(peer))], node(len(asked)))

    return Libp2pDHT("own", call, counters, PeerLimits(VirtualClock(), counters)), asked, counters


async def test_search_ends_despite_endless_invented_neighbors() -> None:
    ids = iter(range(10_000, 1_000_000))

    def invent(peer: str) -> tuple:
        few = islice(ids, 30)
        return tuple((node(n), addresses.peer_id_text(n.to_bytes(38, "big"))) for n in few)

    hash_table, asked, counters = answering(invent)
    hash_table.table.seen(node(1), PEERS[0])
    await hash_table.find_neighbours()
    assert 1 < len(asked) <= MOST_ASKED
    assert counters.snapshot()["neighbours_refused"] > 0


async def test_unreachable_node_is_removed_and_the_others_are_asked(counters) -> None:
    async def call(peer: str, name: str, request: bytes) -> bytes:
        if peer == PEERS[0]:
            raise PeerUnreachable("gone")
        return calls.pack_results([Result(None, 0.0, ())], node(2))

    hash_table = Libp2pDHT("own", call, counters, PeerLimits(VirtualClock(), counters))
    hash_table.table.seen(node(1), PEERS[0])
    hash_table.table.seen(node(2), PEERS[1])
    await hash_table.find_neighbours()
    assert hash_table.table.nearest(OWN, 20) == [(node(2), PEERS[1])]


async def test_malformed_store_answer_does_not_prevent_other_stores() -> None:
    stored: list[str] = []

    async def call(peer: str, name: str, request: bytes) -> bytes:
        mine = PEERS.index(peer) + 1
        if name == calls.FIND:
            return calls.pack_results([Result(None, 0.0, ())], node(mine))
        if peer == PEERS[0]:
            return encode({2: b"\x80", 3: calls.pack_node(node(mine))})
        stored.append(peer)
        return calls.pack_stored([True], node(mine))

    clock, counters = VirtualClock(), Counters()
    hash_table = Libp2pDHT("own", call, counters, PeerLimits(clock, counters))
    hash_table.client = True
    for number, peer in enumerate(PEERS[:2], start=1):
        hash_table.table.seen(node(number), peer)
    assert await hash_table.store("key", b"anna", b"value", clock.time() + 60)
    assert (stored, counters.snapshot()["dht_answers_refused"]) == ([PEERS[1]], 1)


async def test_shelf_drops_expired_records_and_keeps_the_later_one(clock) -> None:
    now, shelf = clock.time(), Shelf(clock)
    assert not shelf.store_subkey(b"k", b"late", b"v", now)
    assert shelf.store_subkey(b"k", b"anna", b"first", now + 10)
    assert not shelf.store_subkey(b"k", b"anna", b"again", now + 10)
    assert shelf.store_subkey(b"k", b"anna", b"second", now + 20)
    assert shelf.store_subkey(b"k", b"ben", b"short", now + 5)
    await clock.advance(6)
    entry = shelf.get(b"k")
    assert entry is not None and dict(entry.value.items()) == {b"anna": (b"second", now + 20)}
    await clock.advance(20)
    assert shelf.get(b"k") is None and len(shelf) == 0
    assert Dictionary().latest == float("-inf") and Dictionary().packb()


def source(data: bytes) -> Callable[[int], Awaitable[bytes]]:
    buffer = bytearray(data)

    async def read(n: int) -> bytes:
        if len(buffer) < n:
            raise EOFError("it hung up")
        chunk = bytes(buffer[:n])
        del buffer[:n]
        return chunk

    return read


def agree(work: Callable[..., Awaitable[object]], heard: bytes, *args: object) -> tuple:
    said: list[bytes] = []

    async def write(data: bytes) -> None:
        said.append(data)

    async def run() -> object:
        return await work(source(heard), write, *args)

    return asyncio.run(run()), b"".join(said)


def test_negotiation_succeeds_after_unsupported_protocols() -> None:
    heard = line(HEADER) + line("/tls/1.0.0") + line("ls") + line("/noise")
    chosen, said = agree(accept, heard, ("/noise",))
    assert chosen == "/noise"
    assert said == line(HEADER) + line("na") * 2 + line("/noise")
    assert agree(propose, line(HEADER) + line("/noise"), "/noise")[1] == line(HEADER) + line(
        "/noise"
    )


@pytest.mark.parametrize(
    "heard",
    [
        line("GET / HTTP/1.1"),
        line(HEADER) + line("na") * 100,
        line(HEADER) + b"\xff\xff\xff\xff",
        line(HEADER) + b"\x00",
        line(HEADER) + b"\x03abc",
    ],
)
def test_failed_negotiation_raises_an_error(heard: bytes) -> None:
    with pytest.raises(NotSpoken):
        agree(accept, heard, ("/noise",))
    with pytest.raises(NotSpoken):
        agree(propose, heard, "/noise")


def test_address_book_keeps_few_dialable_addresses_and_prefers_own_claims():
    book = Book()
    book.reported("anna", [f"/ip4/10.0.0.{n}/tcp/1" for n in range(100)])
    assert len(book.of("anna")) == MOST_EACH
    wrong = "/ip4/1.2.3.4/udp/1/quic-v1", "/unix/tmp/x", "/ip4/1.2.3.4/tcp/0", "nonsense"
    book.reported("ben", wrong)
    assert book.of("ben") == ()
    book.claimed("anna", ["/ip4/10.1.1.1/tcp/7"])
    assert book.of("anna")[0] == "/ip4/10.1.1.1/tcp/7"
    book.reported("anna", ["/ip4/10.2.2.2/tcp/7"])
    assert "/ip4/10.2.2.2/tcp/7" not in book.of("anna")
    book.answered("anna", "/dns4/anna.example/tcp/7")
    assert book.of("anna")[0] == "/dns4/anna.example/tcp/7"


def test_address_book_rejects_claimed_names() -> None:
    book = Book()
    names = [f"/{kind}/third.example/tcp/4001" for kind in ("dns", "dns4", "dns6")]
    names.append(f"{names[0]}/p2p/{PEERS[1]}/p2p-circuit")
    book.claimed("mallory", names)
    book.reported("mallory", [*names, "/ip6/2001:db8::7/tcp/4001"])
    assert book.of("mallory") == ("/ip6/2001:db8::7/tcp/4001",)


def test_address_yields_a_port_or_is_refused() -> None:
    assert place_of("/ip6/::1/tcp/7/p2p/x") == HostPort("ip6", "::1", 7)
    for invalid in ("/ip4/1.2.3.4/udp/7", "/ip4/1.2.3.4/tcp/99999", "/ip4//tcp/1", "x" * 1000):
        with pytest.raises(ValueError):
            place_of(invalid)
    assert "/ip4/127.0.0.1/tcp/7" in seen_at([HostPort("ip4", "0.0.0.0", 7)])
    assert seen_at([HostPort("ip4", "127.0.0.1", 7)]) == ("/ip4/127.0.0.1/tcp/7",)


def test_introduction_messages_round_trip() -> None:
    raw = peer_id_bytes(PEERS[0])
    assert told.asked_for(told.question(raw)) == raw
    answer = told.reply([(raw, [b"/one", b"/two"])])
    assert told.addresses_in(answer, bytes.decode, 1) == {PEERS[0]: ["/one"]}
    with pytest.raises(ValueError, match="FIND_NODE"):
        told.asked_for(encode({1: 0, 2: raw}))
    said = told.identification(b"key", [b"/one", b"/two"], ["/p/1"], b"/seen")
    assert told.listening_at(said, bytes.decode, 8) == ("/one", "/two")


def test_message_parser_reads_few_addresses_and_skips_overlong_ones() -> None:
    read: list[bytes] = []

    def text(address: bytes) -> str:
        read.append(address)
        return address_of(address)

    peer = bytes([0xA5, 3, 34]) + bytes(34)
    good, overlong = b"\x04\x7f\0\0\x01\x06\x10\x01" + peer, b"\x36\x7f" + b"a" * 127
    said = told.identification(b"key", [overlong * 4, *[good] * 1000], [], b"")
    found = told.listening_at(said, text, MOST_EACH)
    assert set(found) == {f"/ip4/127.0.0.1/tcp/4097/p2p/{addresses.peer_id_text(bytes(34))}"}
    assert len(read) < 10
    assert address_of(overlong) and not address_of(good + peer * 4) and not address_of(overlong * 4)


class Stream:
    """A stream with everything that a peer sends, and the bytes sent to the peer."""

    def __init__(self, said: bytes) -> None:
        self.reader = asyncio.StreamReader(limit=1 << 20)
        self.reader.feed_data(said)
        self.reader.feed_eof()
        self.told: list[bytes] = []
        self.write = self.told.append
        self.transport = SimpleNamespace(set_write_buffer_limits=lambda high: None)

    async def drain(self) -> None:
        """Return immediately: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


async def nothing(*args: object) -> dict:
    return {}


def introducing(
    counters: Counters,
    limits: PeerLimits,
    dial: Callable[..., Awaitable] = nothing,
    public_key: bytes = b"",
) -> told.Introductions:
    """Return introductions of a node without connections."""
    stack = SimpleNamespace(public_key=public_key)
    host = SimpleNamespace(connected=nothing, spoken=nothing, stack=stack, dial=dial)
    thread = SimpleNamespace(call=lambda work, *args: work(*args))
    return told.Introductions(host, thread, nothing, counters, limits, CallBudget(counters, limits))


async def test_node_returns_its_own_address_on_request(counters) -> None:
    anna = identity("anna")
    key = b"\x08\x01\x12\x20" + anna.author
    limits = PeerLimits(VirtualClock(), counters)
    here = introducing(counters, limits, public_key=key)
    here.listening = ("/ip4/127.0.0.1/tcp/4001",)
    asked = told.question(peer_id_bytes(anna.peer_id))
    stream = Stream(varint(len(asked)) + asked)
    with suppress(EOFError):
        await here.handlers()[told.ROUTING]("ben", stream.reader, stream)
    answer = stream.told[0].partition(b"\x08\x04")
    assert told.addresses_in(b"".join(answer[1:]), address_of, 8) == {
        anna.peer_id: [*here.listening]
    }


@pytest.mark.parametrize("protocol", [told.IDENTIFY, told.PUSH, told.ROUTING])
async def test_endless_introductions_exhaust_the_peer_budget(protocol, counters) -> None:
    said = told.identification(b"key", [place(4001)], ["/p" * 30_000], b"")
    if protocol == told.ROUTING:
        said = told.question(peer_id_bytes(PEERS[0]))
    limits, disconnected = PeerLimits(VirtualClock(), counters), list[str]()
    limits.disconnect = disconnected.append
    here = introducing(counters, limits)

    async def introduce(peer: str) -> Stream:
        stream = Stream(b"" if protocol == told.IDENTIFY else varint(len(said)) + said)
        await here.handlers()[protocol](peer, stream.reader, stream)
        return stream

    for _ in range(1500):
        await introduce("flo")
    assert counters.snapshot()["dht_calls_refused"] > 300
    assert set(disconnected) == {"flo"}
    stream = await introduce("ben")
    assert here.book.of("ben") if protocol == told.PUSH else stream.told


async def test_node_resolves_user_names_but_not_peer_names(counters, monkeypatch) -> None:
    dialed, asked = list[HostPort](), list[str]()

    async def dial(peer: str, place: HostPort) -> bool:
        dialed.append(place)
        return True

    def look_up(host: str, port: int, *rest: object, **options: object) -> list:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    here = introducing(counters, PeerLimits(VirtualClock(), counters), dial)
    anna, rita = PEERS[:2]
    claims = ["/dns4/third.example/tcp/4001", f"/dns6/third.example/tcp/1/p2p/{rita}/p2p-circuit"]
    for claim in claims:
        with pytest.raises(ConnectionError, match="not dialed"):
            await here.dial(anna, [claim])
    assert (dialed, asked) == ([], []) and counters.snapshot()["dials_refused"] == 2
    trusted = "/dns4/seed.example/tcp/4001"
    await here.dial(anna, [trusted], named=True)
    assert dialed == [place_of(trusted)]
    with pytest.raises(ConnectionError):
        await here.dial(anna, ["/dns4/third.example/tcp/4001"])
    await here.dial(anna, [trusted])
    assert (dialed[1:], asked) == ([place_of("/ip4/192.0.2.7/tcp/4001")], ["seed.example"])


def place(port: int) -> bytes:
    return b"\x04\x7f\0\0\x01\x06" + port.to_bytes(2, "big")


async def test_failed_calls_count_against_the_callers_budget():
    clock, counters = VirtualClock(), Counters()
    budget = CallBudget(counters, PeerLimits(clock, counters))

    async def failing() -> bytes:
        raise ValueError("more records than one message holds")

    errors = list[str]()
    for _ in range(100):
        try:
            await budget.serve("mallory", 100, failing)
        except (ValueError, PermissionError) as error:
            errors.append(str(error))
    assert errors[-1] == "over budget"
    assert errors.count("over budget") == counters.snapshot()["dht_calls_refused"] > 60
