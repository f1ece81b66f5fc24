"""A node finds a bootstrap node by the TXT records of a name."""

import subprocess
import sys
from contextlib import ExitStack

import pytest

from protocol.identity import Identity
from tests.end_to_end.watching import wait_until
from tests.routers.laboratory import Place
from tests.routers.looking import peer
from tests.routers.member import ROOT

pytestmark = pytest.mark.processes


def name_server(place: Place, stack: ExitStack, *records: str) -> None:
    """Run a name server in a place until the stack is closed."""
    module = [sys.executable, "-m", "tests.routers.name_server", place.ipv4, *records]
    server = subprocess.Popen([*place.prefix, *module], stdout=subprocess.PIPE, cwd=ROOT)
    stack.callback(lambda: (server.kill(), server.wait()))
    assert server.stdout and server.stdout.readline() == b"listening\n"


def test_node_joins_by_dns_name_and_reports_an_unknown_name(village, tmp_path):
    seed = village.seed()
    place = village.laboratory.host()
    (address,) = village.addresses
    known, nobody = (f"/dnsaddr/{name}/p2p/{seed.peer_id}" for name in ("swarm.test", "no.test"))
    stranger = Identity.generate().peer_id
    with ExitStack() as stack:
        texts = f"dnsaddr=/ip4/11.7.0.250/tcp/4001/p2p/{stranger}", f"dnsaddr={address}"
        records = [f"_dnsaddr.swarm.test={text}" for text in (*texts, "v=spf1 -all")]
        name_server(place, stack, *records)
        host, file = village.laboratory.host(), tmp_path / "resolv.conf"
        here = village.laboratory.resolving(host, place, file)
        joiner = village.member(here, "found", "bootstrap", network__peers=[known])
        wait_until(lambda: bool(peer(joiner, seed).get("connected")), joiner, "the seed")
        assert joiner.status()["swarm_id"] == seed.status()["swarm_id"]
        settings = {"network__peers": [nobody], "network__start_timeout": 15.0}
        lost = village.member(here, "lost", "bootstrap", **settings)
        wait_until(lambda: lost.exit_code is not None, seed, "an end of looking")
        assert lost.exit_code == 1
        assert lost.said(f"no peer answers at {nobody}: the name is unknown")
