"""An honest node in its own process among hostile peers, and the outcome."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from node.tasks.task_set import load_task_set
from node.threads import LoopThread
from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, sign_manifest
from swarm.transport.transport import TransportError
from tests.end_to_end.commands import Command
from tests.hostile.behaviour import Behaviour, NodeView, World
from tests.hostile.frames import UNSAFE
from tests.hostile.peer import RIGHT, Peer, Served, Terms

EPOCH_SECONDS = 2.0
TIMEOUT = 240.0
POLL_SECONDS = 0.2
BATCH = 7
"""Number of daemons that start at the same time."""

TINY = tuple(spec.name for spec in load_task_set("tiny"))
NODE = (
    "--set=mixture.local=2",
    "--set=mixture.external=6",
    '--set=network.listen=["/ip4/127.0.0.1/tcp/0"]',
    "--set=network.pulls_per_epoch=64",
    "--set=network.gossip_peers=16",
    "--set=network.start_timeout=120",
    "--set=node.threads=1",
    "--set=engine.max_new_tokens=8",
    "--set=schedule.eval_tasks=4",
    "--set=schedule.checkpoint_every=5",
    *(f"--set=tasks.weights.{name}=1.0" for name in TINY),
)

log = logging.getLogger(__name__)


class Ben(Behaviour):
    """The honest swarm creator: two groups per time slot, with true rewards."""

    async def begin(self, peer: Peer, world: World) -> None:
        self._epoch = -1

    async def turn(self, peer: Peer, world: World) -> None:
        epoch = peer.terms.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            texts = (RIGHT, "no idea", RIGHT, "none")
            peer.offer(peer.frame(*(peer.group(n, texts, epoch=epoch) for n in range(2))))
        await super().turn(peer, world)


def create(creator: Identity) -> bytes:
    """Create a swarm with short time slots and a family that evaluates answers."""
    unsafe = EnvSpec(UNSAFE, "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
    kwargs = {"name": "under siege", "founder": creator.author, "created": time.time()}
    task_set = (*load_task_set("tiny"), unsafe)
    limits = {"epoch_seconds": EPOCH_SECONDS, "max_age_epochs": 150}
    manifest = Manifest(**kwargs, catalogue=task_set, **limits)
    return sign_manifest(manifest, creator)


class Attack(NamedTuple):
    behaviour: Behaviour
    peer: Peer


@dataclass(slots=True)
class Siege:
    """The state that a test examines afterwards.

    Attributes:
        rounds: rounds of the node before the attacks began.
        failures: errors in the hostile peers themselves, which are faults of the test.
    """

    terms: Terms
    world: World
    node: Command
    served: list[Served]
    attacks: dict[str, Attack] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    rounds: int = 0

    def unnoticed(self) -> list[str]:
        found = self.attacks.items()
        target = self.world.target
        return [n for n, a in found if not a.behaviour.noticed(a.peer.author, target)]

    def used(self, author: bytes) -> int:
        ((used,),) = self.world.target.rows("SELECT count(*) FROM used WHERE author=?", author)
        return int(used)


def poll(node: Command, condition: Callable[[], Any]) -> Any:
    """Return the result of ``condition`` once it is true, or at the timeout."""
    deadline = time.monotonic() + TIMEOUT
    while not (found := condition()) and time.monotonic() < deadline:
        assert node.process.poll() is None, f"the node ended: {node.err}"
        time.sleep(POLL_SECONDS)
    return found


@contextmanager
def siege(folder: Path, behaviours: Sequence[type[Behaviour]]) -> Iterator[Siege]:
    """Start Ben, a node and the hostile peers; end all of them on exit."""
    with ExitStack() as stack:
        loop = LoopThread("peers")
        stack.callback(loop.close)
        peers: list[Peer] = []
        stack.callback(lambda: loop.call(close(peers)))
        served: list[Served] = []
        keys = folder / "keys"
        keys.mkdir()
        creator = Identity.create(keys / "ben.key")
        terms = Terms.of(create(creator))

        def peer(name: str) -> Peer:
            peers.append(Peer(name, keys, terms, served))
            return peers[-1]

        ben = peer("ben")
        loop.call(ben.start(()))
        address = ben.transport.addresses()[0]
        node = Command(folder, "join", f"--peers={address}", *NODE)
        stack.callback(node.close)
        state = Siege(terms, World(view(node), ben), node, served)
        honest = Attack(Ben(), ben)
        loop.call(honest.behaviour.begin(ben, state.world))
        running = [loop.start(live(state, honest))]
        stack.callback(lambda: [future.cancel() for future in running])
        poll(node, lambda: len(node.records()) >= 2)
        state.rounds = len(node.records())
        attacks = [Attack(kind(), peer(kind.__name__.lower())) for kind in behaviours]
        for first in range(0, len(attacks), BATCH):
            group = attacks[first : first + BATCH]
            loop.call(begin(state, group))
            running += [loop.start(live(state, attack)) for attack in group]
        yield state


def view(command: Command) -> NodeView:
    def status() -> dict[str, Any] | None:
        path = command.run.status
        return json.loads(path.read_text()) if path.exists() else None

    found = poll(command, status)
    assert found, f"the node did not come up: {command.err}"
    return NodeView(command.run.root, found["peer_id"], found["addresses"][0])


async def begin(state: Siege, attacks: Sequence[Attack]) -> None:
    """Start some hostile peers, connected with the node and with Ben."""
    world = state.world
    addresses = (world.honest.transport.addresses()[0], world.target.address)

    async def one(attack: Attack) -> None:
        behaviour, peer = attack
        await behaviour.begin(peer, world)
        await peer.start(addresses, answers=behaviour.answers(peer), raw=behaviour.raw(peer))

    await asyncio.gather(*map(one, attacks))
    for attack in attacks:
        state.attacks[attack.peer.name] = attack


async def close(peers: Sequence[Peer]) -> None:
    await asyncio.gather(*(peer.transport.close() for peer in peers))


async def live(state: Siege, attack: Attack) -> None:
    """Take turns until cancelled."""
    while True:
        try:
            await attack.behaviour.turn(attack.peer, state.world)
        except TransportError as error:
            log.info("%s: %s", attack.peer.name, error)
        except Exception as error:
            log.exception("%s", attack.peer.name)
            state.failures.append(f"{attack.peer.name}: {error!r}")
        await asyncio.sleep(EPOCH_SECONDS)
