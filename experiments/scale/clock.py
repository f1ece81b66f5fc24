"""The clock of a simulated swarm: it stands where the simulation put it."""

from __future__ import annotations


class SteppedClock:
    """:class:`swarm.common.clock.Clock` that its owner moves; nobody may wait on it.

    Args:
        start: unix time, seconds.
    """

    def __init__(self, start: float) -> None:
        self._now = start

    def move_to(self, now: float) -> None:
        """Make it ``now``; never earlier than it was."""
        self._now = max(self._now, now)

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Members take turns here, and messages arrive at once.

        Raises:
            RuntimeError: somebody wants to wait.
        """
        if seconds > 0:
            raise RuntimeError(f"nobody waits in a simulated swarm, not even {seconds:g} s")
