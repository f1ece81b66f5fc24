"""What the network's process last told of itself."""

from __future__ import annotations

from typing import Any

from swarm.transport.transport import PeerUnreachable


class State:
    """Of one process after the other; bytes are counted on over all of them."""

    def __init__(self) -> None:
        self._latest: dict[str, Any] = {}
        self._earlier = {"bytes_in": 0, "bytes_out": 0}

    def note(self, state: dict[str, Any]) -> None:
        """Take in what has changed."""
        # One that is starting in place of another knows no addresses yet: they stay the same.
        self._latest |= state

    def begin_again(self) -> None:
        """Another process takes the place of this one."""
        self._earlier = {name: self.bytes(name) for name in self._earlier}
        self._latest |= {"peers": (), "bytes_in": 0, "bytes_out": 0}

    def bytes(self, name: str) -> int:
        """``bytes_in`` or ``bytes_out`` since the first process was started."""
        return int(self._earlier[name] + self._latest.get(name, 0))

    def get(self, name: str, default: Any) -> Any:
        """One of its parts; ``default`` where that was not told yet."""
        return self._latest.get(name, default)

    def of(self, name: str) -> Any:
        """One of its parts.

        Raises:
            PeerUnreachable: it was not told yet.
        """
        if name not in self._latest:
            raise PeerUnreachable("the transport is not started")
        return self._latest[name]
