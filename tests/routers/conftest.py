"""A laboratory with members for each test; skipped if the machine allows none."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.watching import wait_until
from tests.routers.laboratory import Kind, Laboratory, Place, why_not_here
from tests.routers.member import Member, created


class Village:
    """Bootstrap nodes on the open network, and nodes behind routers.

    Attributes:
        laboratory: the networks and hosts.
        addresses: of the bootstrap nodes so far; every later node dials them.
    """

    def __init__(self, laboratory: Laboratory, folder: Path, stack: ExitStack) -> None:
        self.laboratory = laboratory
        self.addresses: list[str] = []
        self._folder = folder
        self._stack = stack

    def seed(self, name: str = "seed", *, ipv6: bool = False, **settings: Any) -> Member:
        """Start a bootstrap node on the open network; the first creates the swarm."""
        place = self.laboratory.host()
        ip = f"/ip6/{place.ipv6}" if ipv6 else f"/ip4/{place.ipv4}"
        if not self.addresses:
            created(self._folder / name)
        here = {"network__listen": [f"{ip}/tcp/4001"], "network__peers": self.addresses}
        seed = self.member(place, name, "bootstrap", **{**here, **settings})
        address = f"{ip}/tcp/4001/p2p/{seed.peer_id}"
        wait_until(lambda: bool(seed.status().get("addresses")), seed, "a seed")
        self.addresses = [*self.addresses, address]
        return seed

    def node(self, name: str, behind: Kind | Place | None = None, **settings: Any) -> Member:
        """Start a node behind a router of a kind, or on the open network."""
        if isinstance(behind, str):
            behind = self.laboratory.router(behind)
        place = self.laboratory.behind(behind) if behind else self.laboratory.host()
        return self.member(place, name, "join", **{"network__peers": self.addresses, **settings})

    def member(self, place: Place, name: str, command: str, **settings: Any) -> Member:
        member = Member(place, self._folder / name, command, **settings)
        self._stack.callback(member.close)
        return member.start()


@pytest.fixture
def village(tmp_path: Path) -> Iterator[Village]:
    if lacking := why_not_here():
        pytest.skip(lacking)
    with ExitStack() as stack:
        laboratory = Laboratory()
        stack.callback(laboratory.close)
        yield Village(laboratory, tmp_path, stack)
