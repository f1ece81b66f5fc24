"""What a node concludes from its peers' attempts to dial it."""

from __future__ import annotations

from protocol.identity import Identity
from protocol.messages import DialledBack
from swarm.transport.hivemind.dht import packed
from swarm.transport.node import with_port_of
from swarm.transport.transport import describe_reach, dialled, host_of, links_of, port_of

YES, NO = DialledBack("11.7.0.3", (4001,), True), DialledBack("11.7.0.3", (), True)
BESIDE = DialledBack("192.168.3.2", (4001,), True)
BEN, CLEO = (Identity.from_seed(bytes([n] * 32)).peer_id for n in (1, 2))
THROUGH = f"/ip4/11.7.0.2/tcp/4001/p2p/{BEN}/p2p-circuit/p2p/{CLEO}"


def test_one_liar_among_three_decides_nothing() -> None:
    assert dialled([YES, YES, NO])
    assert not dialled([NO, NO, YES])


def test_a_peer_on_this_side_of_the_router_does_not_count_beside_one_outside() -> None:
    assert dialled([BESIDE])
    assert not dialled([BESIDE, BESIDE, NO])


def test_a_peer_is_connected_directly_where_any_of_its_connections_is() -> None:
    links = links_of({CLEO: (THROUGH,), BEN: (THROUGH, f"/ip4/11.7.0.2/tcp/4001/p2p/{BEN}")})
    assert links == {CLEO: "relayed", BEN: "direct"}


def test_host_and_port_are_those_that_an_address_begins_with() -> None:
    assert (host_of(THROUGH), port_of(THROUGH)) == ("11.7.0.2", 4001)
    assert (host_of("/dns4/example.org/tcp/5"), port_of("/unix/tmp/x")) == ("", 0)


def test_the_port_that_was_drawn_is_not_read_from_a_relays_address() -> None:
    own = f"/ip4/192.168.3.2/tcp/40123/p2p/{CLEO}"
    assert with_port_of([THROUGH, own], ["/ip4/0.0.0.0/tcp/0"]) == ("/ip4/0.0.0.0/tcp/40123",)


def test_an_address_through_a_relay_is_written_as_libp2p_reads_it() -> None:
    class Plain:
        """Stands for a multiaddress without peer ids, which the library writes itself."""

        def __init__(self, of: str | bytes) -> None:
            self._raw = of if isinstance(of, bytes) else of.encode()

        def to_bytes(self) -> bytes:
            return self._raw

    raw = packed(THROUGH.rpartition("/p2p/")[0], Plain).to_bytes()
    head, tail = b"/ip4/11.7.0.2/tcp/4001", b"/p2p-circuit"
    assert raw.startswith(head + b"\xa5\x03\x26\x00\x24\x08\x01\x12\x20")
    assert raw.endswith(tail)
    assert len(raw) == len(head) + 3 + 38 + len(tail)


def test_a_remedy_names_the_port_and_where_the_node_was_seen() -> None:
    reach = describe_reach("relayed", [31337], ["11.7.0.3", "11.7.0.3"], relays=2)
    assert reach.cause == (
        "no peer could dial 11.7.0.3 at TCP port 31337; 2 of its peers relay for it"
    )
    assert "forward TCP port 31337" in reach.remedy
    assert describe_reach("direct", [1], ["11.7.0.3"], 0).remedy == ""
