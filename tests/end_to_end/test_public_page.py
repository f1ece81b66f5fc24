"""The public page of a real swarm is correct if peers lie or leave."""

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from node.demo.node_process import NodeProcess
from node.run.preflight import prepare
from node.threads import LoopThread
from protocol.identity import Identity
from swarm.transport.transport import TransportError
from tests.end_to_end.commands import NOBODY, Command
from tests.end_to_end.forked import ForkedNode
from tests.end_to_end.watching import OUT_OF_TIME, PATIENCE, wait_until
from tests.hostile.peer import RIGHT, Peer, Terms
from tests.hostile.siege import create

pytestmark = pytest.mark.processes

LOCAL = '--set=network.listen=["/ip4/127.0.0.1/tcp/0"]'
QUIET = "--set=monitor.dashboard=false"


class Author:
    """A peer that announces one new frame per second until it stops."""

    def __init__(self, peer: Peer, at: str, texts: tuple[str, ...], claims: tuple[float, ...]):
        self.peer, self.rewards = peer, list[float]()
        self._at, self._texts, self._claims = at, texts, claims
        self.running: Future[None] | None = None

    def stop(self) -> None:
        if self.running:
            self.running.cancel()

    async def live(self) -> None:
        index, target = 0, self._at.rpartition("/")[2]
        while True:
            group = self.peer.group(index, self._texts, claims=self._claims)
            self.rewards.append(fmean(group.rewards))
            self.peer.offer(self.peer.frame(group))
            index += 1
            try:
                await self.peer.announce(target)
            except TransportError:
                continue  # A busy machine; the next try follows in a second.
            finally:
                await asyncio.sleep(1.0)


class Public:
    """A bootstrap node with a public page."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack, self._folder = stack, folder
        self.keys = folder / "keys"
        self.keys.mkdir()
        self.terms = Terms.of(create(Identity.create(self.keys / "creator.key")))
        place = folder / "bootstrap"
        prepare(place)
        (place / "manifest.swarm").write_bytes(self.terms.signed)
        self.site = folder / "site"
        shown = ("--public", "127.0.0.1:0", "--snapshot", str(self.site))
        self.seed = self.start(
            "bootstrap", "--config", str(place / "node.toml"), *shown, LOCAL, QUIET
        )
        self.address = self.seed.wait_for_address(PATIENCE)
        self.url = address_of(self.seed)
        self.loop = LoopThread("peers")
        stack.callback(self.loop.close)

    def start(self, name: str, *options: str) -> NodeProcess:
        place = self._folder / name
        place.mkdir(exist_ok=True)
        process = ForkedNode([name, *options], place)
        self._stack.callback(process.close)
        return process

    def author(self, name: str, texts: tuple[str, ...], claims: tuple[float, ...] = ()) -> Author:
        peer = Peer(name, self.keys, self.terms, [])
        self._stack.callback(lambda: self.loop.call(peer.transport.close()))
        self.loop.call(peer.start([self.address]))
        author = Author(peer, self.address, texts, claims)
        author.running = self.loop.start(author.live())
        self._stack.callback(author.stop)
        return author


def address_of(process: NodeProcess) -> str:
    def told() -> list[str]:
        text = (process.folder / "output.log").read_text()
        return re.findall(r"^the swarm's page: (http\S+)$", text, re.M)

    wait_until(told, process, "a page")
    return told()[0]


def read(url: str, name: str) -> bytes:
    with urllib.request.urlopen(f"{url}data/{name}.json", timeout=120) as answer:
        return bytes(answer.read())


def told(url: str, name: str = "swarm") -> Any:
    return json.loads(read(url, name))


def author_on(url: str, author: Author) -> dict[str, Any]:
    """Return the figures of an author, or {} if the page does not list it."""
    listed = told(url, "authors")["authors"]
    key = author.peer.author.hex()
    return next((each for each in listed if each["author"] == key), {})


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Public]:
    with ExitStack() as stack:
        yield Public(tmp_path, stack)


def test_public_page_reports_correct_figures(public: Public, swarm) -> None:
    url, seed = public.url, public.seed
    ben = public.author("ben", (RIGHT, "no idea", RIGHT, "none"))
    larry = public.author("larry", ("no idea", "none"), claims=(1.0, 0.0))
    first = swarm.node("first", public.address)
    watch = public.start("observe", "--peers", public.address, LOCAL)
    other = address_of(watch)

    for page in (url, other):
        wait_until(lambda p=page: author_on(p, ben).get("verified", 0) >= 2, seed, "groups")
        wait_until(lambda p=page: author_on(p, larry).get("refused"), seed, "refusals")
        assert author_on(page, larry)["verified"] == 0
        assert set(author_on(page, larry)["refused"]) <= {"reward_mismatch", "banned", *OUT_OF_TIME}
        (reward,) = author_on(page, ben)["rewards"].values()
        assert reward == pytest.approx(fmean(ben.rewards), abs=1e-3)
        assert set(ben.rewards) == {ben.rewards[0]}, "the mean must not depend on the sample"

    wait_until(lambda: told(url)["now"]["nodes"] == 3, seed, "three nodes")
    wait_until(lambda: told(other)["now"]["nodes"] == 4, watch, "four nodes")
    assert told(url)["total"]["authors"] == 3, "an observer does not count as an author"
    assert told(other)["now"]["bootstrap"] >= 1 and told(other)["observer"]["kind"] == "observe"
    verified = "groups of the node"
    wait_until(
        lambda: told(url)["total"]["verified"] > author_on(url, ben)["verified"], seed, verified
    )
    assert first.exit_code is None

    def same() -> bool:
        served = [read(url, name) for name in ("swarm", "history", "authors")]
        written = [(public.site / "data" / f"{n}.json").read_bytes() for n in ("swarm", "history")]
        return written == served[:2]

    wait_until(same, seed, "a snapshot")
    ben.stop()
    wait_until(lambda: told(url)["now"]["nodes"] == 2, seed, "two nodes")
    assert sum(count or 0 for count in told(url, "history")["left"]) >= 1
    watch.close()
    assert watch.exit_code == 0
    seed.close()
    census = json.loads((public.seed.folder / "census.json").read_bytes())
    assert census["total"]["authors"] == 3


def failing(folder: Path, *arguments: str) -> str:
    """Return the one error line of a command that must fail."""
    with Command(folder, "observe", *arguments, forked=True) as command:
        assert command.wait() in (1, 2)
        (line,) = [each for each in command.err if each.startswith("error: ")]
        return line


def test_observe_reports_bad_options_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    peers = f"--peers={NOBODY}"
    invalid = failing(tmp_path, peers, "--public", "127.0.0.1:1x")
    assert "monitor.public" in invalid and "host:port" in invalid
    blocked = failing(tmp_path, peers, "--snapshot", "file")
    assert "monitor.snapshot" in blocked and "file" in blocked
    alone = failing(tmp_path)
    assert "network.peers" in alone and "swarm-node observe --peers ADDRESS" in alone
    silent = failing(tmp_path, peers, "--set=network.start_timeout=15")
    assert "no peer answered within 15 seconds" in silent
