"""What a hostile peer does, and what a node has to make of it."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarm.transport.node import StreamHandler
from tests.hostile.peer import Answer, Peer

NO_TIME = frozenset({"over_budget", "timeout", "abandoned", "too_slow"})
"""Reasons of refusal that only a lack of time causes."""


@dataclass(frozen=True, slots=True)
class Reputation:
    """What a node's journal says of one author."""

    admitted: int = 0
    penalties: float = 0.0
    barred: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)

    @property
    def charged(self) -> dict[str, int]:
        """What its groups and frames were refused for, want of time excepted."""
        return {reason: n for reason, n in self.refused.items() if reason not in NO_TIME}

    @property
    def passed_over(self) -> int:
        """How many there was no time for."""
        return sum(self.refused.values()) - sum(self.charged.values())

    @property
    def looked_at(self) -> int:
        """The number of groups and frames that were admitted or refused."""
        return self.admitted + sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its files tell of it, while it runs or afterwards."""

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
        """Totals, those of refused groups left out, as the last round's record has them."""
        status = json.loads((self.folder / "status.json").read_text())
        return dict(status["record"]["counters"]) if status["record"] else {}

    def count(self, prefix: str) -> float:
        return sum(n for name, n in self.counters().items() if name.startswith(prefix))


@dataclass(slots=True)
class World:
    """Whom a hostile peer has before it.

    Attributes:
        target: the honest node.
        honest: an author who shares good groups all the while.
    """

    target: NodeView
    honest: Peer


class Behaviour:
    """One way to do harm; the base does none.

    Attributes:
        refused: what the target charges its author with, by reason; whatever else is charged is a
            failure of the test.
        penalties: what these weigh together; None where it is a matter of patience, and the node
            may charge as it sees fit.
        counted: counters of the target that have to name the harm.
        admitted: groups that the target takes from it, being as good as they say.
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
        """Streams that it answers in its own way."""
        return {}

    def raw(self, peer: Peer) -> Mapping[str, StreamHandler]:
        """Streams on which it writes its own bytes."""
        return {}

    async def begin(self, peer: Peer, world: World) -> None:
        """Make what is to be offered."""

    async def turn(self, peer: Peer, world: World) -> None:
        """What it does again and again."""
        await peer.announce(world.target.peer_id)

    def noticed(self, author: bytes, target: NodeView) -> bool:
        reputation = target.reputation(author)
        return (
            all(reputation.refused.get(reason, 0) >= n for reason, n in self.refused.items())
            and reputation.admitted + reputation.passed_over >= self.admitted
            and all(target.count(name) for name in self.counted)
        )


def offers(**found: Any) -> Callable[[Callable[[Peer], Iterator[bytes]]], type[Behaviour]]:
    """The behaviour that offers the frames which a function makes."""

    def made(frames: Callable[[Peer], Iterator[bytes]]) -> type[Behaviour]:
        async def begin(self: Behaviour, peer: Peer, world: World) -> None:
            for frame in frames(peer):
                peer.offer(frame)

        return type(frames.__name__.strip("_"), (Behaviour,), {"begin": begin}, **found)

    return made
