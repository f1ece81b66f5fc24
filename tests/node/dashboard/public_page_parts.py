"""A page that is served to everybody, and who reads it over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from node.dashboard.access import listen
from node.dashboard.public_server import Observed, Page, PageServer, data, documents, unchanging
from swarm.common.counters import Counters
from tests.node.dashboard.browser import Answer, get
from tests.swarm.census.census_parts import SWARM, Watched, group, key, offer, peer
from tests.swarm.network_parts import manifest


@dataclass
class Site:
    """A server at work."""

    server: PageServer
    counters: Counters
    port: int

    def get(self, path: str, *how: Any, **options: Any) -> Answer:
        return get(self.port, path, *how, **options)


@contextmanager
def shown(page: Page, host: str = "127.0.0.1") -> Iterator[Site]:
    """A server of a page on a free port."""
    counters, place = Counters(), listen(f"{host}:0", "monitor.public")
    server = PageServer(place, counters)
    server.show(page)
    with closing(server):
        yield Site(server, counters, place.port)


def seen(watched: Watched) -> Observed:
    """What a seed knows beside what it counted."""
    agreed = manifest()
    return Observed(
        "1.0", watched.clock.time(), 10.0, "12D3me", "bootstrap", ["/ip4/1"], agreed, SWARM
    )


def swarm_of(names: list[str]) -> Watched:
    """A swarm in which everybody offers two groups, one of which was verified."""
    watched = Watched()
    peers = [peer(name, [offer(number)]) for number, name in enumerate(names)]
    watched.look(*peers, refused={(key(names[-1]), "reward_mismatch"): 1})
    watched.look(*peers, arrived=[group(name, 1) for name in names])
    return watched


def page_of(names: list[str]) -> Page:
    """The whole page of that swarm."""
    watched = swarm_of(names)
    return unchanging() | data(documents(watched.census, seen(watched)))
