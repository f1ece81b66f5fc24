"""A seed found by the TXT records of a name, as an operator's name server has them."""

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
    """Have a name server run in a place until the stack is closed."""
    module = [sys.executable, "-m", "tests.routers.name_server", place.ipv4, *records]
    server = subprocess.Popen([*place.prefix, *module], stdout=subprocess.PIPE, cwd=ROOT)
    stack.callback(lambda: (server.kill(), server.wait()))
    assert server.stdout and server.stdout.readline() == b"listening\n"


def test_a_name_whose_records_list_the_seed_is_joined_and_one_of_nobody_is_told(village, tmp_path):
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
        found = village.member(here, "found", "bootstrap", network__peers=[known])
        wait_until(lambda: bool(peer(found, seed).get("connected")), found, "the seed")
        assert found.status()["swarm_id"] == seed.status()["swarm_id"]
        settings = {"network__peers": [nobody], "network__start_timeout": 15.0}
        lost = village.member(here, "lost", "bootstrap", **settings)
        wait_until(lambda: lost.exit_code is not None, seed, "an end of looking")
        assert lost.exit_code == 1
        assert lost.said(f"no peer answers at {nobody}: the name is unknown")
