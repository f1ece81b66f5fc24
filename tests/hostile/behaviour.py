"""Behaviors of hostile peers, and what a node must record about them."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarm.transport.node import StreamHandler
from tests.hostile.peer import Answer, Peer

NO_TIME = frozenset({"over_budget", "timeout", "abandoned", "too_slow"})
"""Refusal reasons that only a lack of time causes."""


@dataclass(frozen=True, slots=True)
class Reputation:
    """The reputation of one author in a node's journal."""

    admitted: int = 0
    penalties: float = 0.0
    barred: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)

    @property
    def charged(self) -> dict[str, int]:
        """Return the refusals of its groups and frames, except for lack of time."""
        return {reason: n for reason, n in self.refused.items() if reason not in NO_TIME}

    @property
    def passed_over(self) -> int:
        """Return the number of groups and frames refused for lack of time."""
        return sum(self.refused.values()) - sum(self.charged.values())

    @property
    def looked_at(self) -> int:
        """Return the number of groups and frames that were admitted or refused."""
        return self.admitted + sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its files describe it, while it runs or afterwards."""

    folder: Path
    peer_id: str
    address: str

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        path = self.folder / "journal.sqlite"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return connection.execute(query, parameters).fetchall()

    def reputation(self, author: bytes) -> Reputation:
        query = "SELECT admitted, strikes, barred FROM accounts WHERE author=?"
        found = self.rows(query, author)
        if not found:
            return Reputation()
        refused = self.rows("SELECT reason, n FROM refusals WHERE author=?", author)
        return Reputation(found[0][0], found[0][1], bool(found[0][2]), dict(refused))

    def counters(self) -> dict[str, float]:
        """Return the counters of the last round's record, without refused groups."""
        status = json.loads((self.folder / "status.json").read_text())
        return dict(status["record"]["counters"]) if status["record"] else {}

    def count(self, prefix: str) -> float:
        return sum(n for name, n in self.counters().items() if name.startswith(prefix))


@dataclass(slots=True)
class World:
    """The honest nodes around a hostile peer.

    Attributes:
        target: the honest node under attack.
        honest: an author that shares correct groups throughout.
    """

    target: NodeView
    honest: Peer


class Behaviour:
    """One hostile behavior; the base class is harmless.

    Attributes:
        refused: number of refusals per reason that the target must charge to its author; any
            other charge fails the test.
        penalties: total weight of these; None if the attack only costs time, and the node may
            charge any amount.
        counted: counters of the target that must show the attack.
        admitted: groups that the target must admit, because their claims are true.
    """

    def __init_subclass__(
        cls,
        *,
        penalties: float | None = 0.0,
        counted: tuple[str, ...] = (),
        admitted: int = 0,
        **refused: int,
    ) -> None:
        cls.penalties, cls.refused = penalties, refused
        cls.counted, cls.admitted = counted, admitted

    def answers(self, peer: Peer) -> Mapping[str, Answer]:
        """Return the streams that the peer answers in its own way."""
        return {}

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        """Return the streams on which the peer writes raw bytes."""
        return {}

    async def begin(self, peer: Peer, world: World) -> None:
        """Prepare what the peer offers."""

    async def turn(self, peer: Peer, world: World) -> None:
        """Act once; the siege calls this repeatedly."""
        await peer.announce(world.target.peer_id)

    def noticed(self, author: bytes, target: NodeView) -> bool:
        reputation = target.reputation(author)
        return (
            all(reputation.refused.get(reason, 0) >= n for reason, n in self.refused.items())
            and reputation.admitted + reputation.passed_over >= self.admitted
            and all(target.count(name) for name in self.counted)
        )


def offers(**found: Any) -> Callable[[Callable[[Peer], Iterator[bytes]]], type[Behaviour]]:
    """Make a behavior that offers the frames of the decorated function."""

    def made(frames: Callable[[Peer], Iterator[bytes]]) -> type[Behaviour]:
        async def begin(self: Behaviour, peer: Peer, world: World) -> None:
            for frame in frames(peer):
                peer.offer(frame)

        return type(frames.__name__.strip("_"), (Behaviour,), {"begin": begin}, **found)

    return made
