"""What happens in a run while somebody looks: one watch of its folder for all who listen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from anyio import to_thread

from node.dashboard.replies import plain
from node.errors import NodeError

log = logging.getLogger(__name__)

STREAMS = 32
"""Open at once."""
WAITING = 64
"""Events that wait for one listener; of more, the oldest are left out."""
LOOK_SECONDS = 0.5
QUIET_SECONDS = 15.0


class Event(NamedTuple):
    """One thing that happened; ``number`` is the round's, where it is a round."""

    name: str
    data: Any
    number: int | None = None

    def text(self) -> bytes:
        """As it stands in a stream of events (HTML, 9.2.5)."""
        number = "" if self.number is None else f"id: {self.number}\n"
        return f"event: {self.name}\n{number}data: {plain(self.data)}\n\n".encode()


GONE = "gone"


class Feed:
    """Watches while anybody listens, and tells all of them the same.

    Args:
        look: what happened since it was last asked, on a thread of its own.
        begin: what a new listener is told first, given the last round that it has heard of and
            whether nobody else listens.
    """

    def __init__(
        self, look: Callable[[], list[Event]], begin: Callable[[int | None, bool], list[Event]]
    ) -> None:
        self._look = look
        self._begin = begin
        self._listeners: set[asyncio.Queue[Event | None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether nobody else may listen now."""
        return len(self._listeners) >= STREAMS

    async def listen(self, last: int | None) -> AsyncIterator[bytes]:
        """The stream of one listener, until the run has ended or the feed is closed."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(WAITING)
        first = not self._listeners
        self._listeners.add(queue)
        try:
            for event in await to_thread.run_sync(self._begin, last, first):
                yield event.text()
            if self._closed:
                queue.put_nowait(None)
            elif self._watch is None or self._watch.done():
                self._watch = asyncio.create_task(self._run())
            while True:
                try:
                    found = await asyncio.wait_for(queue.get(), QUIET_SECONDS)
                except TimeoutError:
                    yield b": nothing new\n\n"
                    continue
                if found is None:
                    yield Event(GONE, {}).text()
                    return
                yield found.text()
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """Tell everybody that it is over; called on the loop that they listen on."""
        self._closed = True
        for queue in self._listeners:
            _put(queue, None)

    async def _run(self) -> None:
        while self._listeners and not self._closed:
            try:
                events = await to_thread.run_sync(self._look)
            except NodeError as error:
                log.warning("the dashboard cannot read the run: %s", error)
                events = []
            for queue in tuple(self._listeners):
                for event in events:
                    _put(queue, event)
            await asyncio.sleep(LOOK_SECONDS)


def _put(queue: asyncio.Queue[Event | None], event: Event | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)
