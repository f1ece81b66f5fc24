"""Addresses with names, resolved by a DNS server that the test runs."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import MOST_ADDRESSES, resolved
from swarm.transport.libp2p.node import Libp2pTransport, Reservations
from swarm.transport.transport import PeerUnreachable
from tests.swarm.network_parts import identity
from tests.swarm.transport.over import LOOPBACK, key_of, started, until

dns = pytest.importorskip("dns", reason="needs libp2p: pip install 'swarm-node[libp2p]'")

ANNA, BEN = (identity(name).peer_id for name in ("anna", "ben"))


class Server(asyncio.DatagramProtocol):
    def __init__(self, zone: Mapping[str, Sequence[str]]) -> None:
        self._zone = zone
        self.asked: list[str] = []

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        import dns.message
        import dns.rcode
        import dns.rrset

        query = dns.message.from_wire(data)
        name = query.question[0].name.to_text()
        self.asked.append(name)
        answer = dns.message.make_response(query)
        texts = self._zone.get(name.rstrip("."))
        if texts is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        else:
            quoted = [f'"{text}"' for text in texts]
            answer.answer.append(dns.rrset.from_text(name, 60, "IN", "TXT", *quoted))
        self._transport.sendto(answer.to_wire(), address)


@asynccontextmanager
async def asking(zone: Mapping[str, Sequence[str]]) -> AsyncIterator[Server]:
    """Yield a server with these records, which the default resolver queries."""
    import dns.asyncresolver

    listening, server = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Server(zone), local_addr=("127.0.0.1", 0)
    )
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = listening.get_extra_info("sockname")[1]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(dns.asyncresolver, "default_resolver", resolver)
        try:
            yield server
        finally:
            listening.close()


async def test_dnsaddr_resolves_only_to_addresses_with_its_peer_id():
    zone = {
        "_dnsaddr.swarm.example": [
            f"dnsaddr=/ip4/192.0.2.1/tcp/1/p2p/{ANNA}",
            f"dnsaddr=/ip4/192.0.2.2/tcp/2/p2p/{BEN}",
            "v=spf1 -all",
            f"dnsaddr=/dnsaddr/more.example/p2p/{ANNA}",
        ],
        "_dnsaddr.more.example": [f"dnsaddr=/ip6/2001:db8::1/tcp/3/p2p/{ANNA}"],
    }
    async with asking(zone):
        result = await resolved(f"/dnsaddr/swarm.example/p2p/{ANNA}")
    assert result == (f"/ip4/192.0.2.1/tcp/1/p2p/{ANNA}", f"/ip6/2001:db8::1/tcp/3/p2p/{ANNA}")
    other = f"/dns4/swarm.example/tcp/1/p2p/{ANNA}"
    assert await resolved(other) == (other,), "only dnsaddr addresses are resolved"


async def test_self_referencing_dnsaddr_lookup_is_bounded() -> None:
    itself = f"dnsaddr=/dnsaddr/larry.example/p2p/{ANNA}"
    extra = [f"dnsaddr=/ip4/192.0.2.1/tcp/{n}/p2p/{ANNA}" for n in range(1, 15)]
    zone = {
        "_dnsaddr.larry.example": [itself, *extra[:7], itself.replace("larry", "also")],
        "_dnsaddr.also.example": [itself, *extra[7:], itself.replace("larry", "also")],
    }
    async with asking(zone) as server:
        assert len(await resolved(f"/dnsaddr/larry.example/p2p/{ANNA}")) <= MOST_ADDRESSES
        assert len(server.asked) < 32


@pytest.mark.processes
@pytest.mark.alone("libp2p")
async def test_node_dials_a_bootstrap_name_and_reports_an_unknown_name(tmp_path):
    zone: dict[str, list[str]] = {}
    keys = (key_of(tmp_path, name) for name in ("anna", "ben"))
    annas, bens = (started(Libp2pTransport(key, listen=LOOPBACK)) for key in keys)
    async with asking(zone), annas as anna, bens as ben:
        zone["_dnsaddr.seed.example"] = [f"dnsaddr={anna.addresses()[0]}"]
        assert await ben.connect(f"/dnsaddr/seed.example/p2p/{anna.peer_id}") == anna.peer_id
        with pytest.raises(PeerUnreachable, match="the name is unknown") as error:
            await ben.connect(f"/dnsaddr/nowhere.example/p2p/{BEN}")
        assert "\n" not in str(error.value)


@pytest.mark.processes
@pytest.mark.alone("libp2p")
async def test_node_replaces_its_announced_name_with_an_ip_address(tmp_path):
    named = ["/dns4/localhost/tcp/4001", "/dns4/no..name/tcp/4001"]
    key = key_of(tmp_path, "anna")
    async with started(Libp2pTransport(key, listen=LOOPBACK, announce=named)) as anna:
        assert anna.addresses() == tuple(
            f"{address}/p2p/{anna.peer_id}" for address in ("/ip4/127.0.0.1/tcp/4001", named[1])
        )


async def test_named_relay_is_announced_by_its_ip_address():
    seconds = {"reserve": 60.0, "relayed_by": True}

    async def call(work: str, *args: object) -> object:
        return seconds[work]

    host = SimpleNamespace(reserve="reserve", relayed_by="relayed_by", speak="speak")
    thread = SimpleNamespace(call=call, post=lambda *args: None)
    reservations = Reservations(host, thread, Counters())
    reservations.keep([f"/dns4/localhost/tcp/4001/p2p/{ANNA}"])
    await until(reservations.addresses)
    reservations.tasks.cancel()
    assert reservations.addresses() == (f"/ip4/127.0.0.1/tcp/4001/p2p/{ANNA}/p2p-circuit",)
