"""A transport whose daemon, DHT and streams run in a separate process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from swarm.common.counters import Counters
from swarm.common.fair_limits import REMEMBERED_SECONDS, OwnFirst, ReputationOf
from swarm.common.util import BackgroundTasks
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node import DaemonFailed, NodeSettings, task_failed, with_port_of
from swarm.transport.node_transport import LOOKUP_SECONDS, NodeTransport
from swarm.transport.records import RecordRule
from swarm.transport.subprocess.link import LinkLost, Process
from swarm.transport.transport import (
    MINIMUM_RATE,
    DeadlineExceeded,
    Handler,
    HandlerLimits,
    PeerUnreachable,
    Reach,
    RecordCheck,
    TransportError,
    check_size,
    reach_of,
)

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0  # extra time for calls that have their own deadline in the child
START_SECONDS = 60.0  # to load libraries and dial, in addition to the daemon's timeout
DIAL_SECONDS = 10.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0  # seconds before a dead process is replaced


class State:
    """The reported state of successive processes; bytes add up over all of them."""

    def __init__(self) -> None:
        self._latest: dict[str, Any] = {}
        self._earlier = {"bytes_in": 0, "bytes_out": 0}

    def note(self, state: dict[str, Any]) -> None:
        """Merge changed values."""
        # A replacement process has no addresses while it starts: the old ones stay valid.
        self._latest |= state

    def begin_again(self) -> None:
        """Reset the state for a replacement process."""
        self._earlier = {name: self.bytes(name) for name in self._earlier}
        self._latest |= {"peers": (), "bytes_in": 0, "bytes_out": 0}

    def bytes(self, name: str) -> int:
        """Return ``bytes_in`` or ``bytes_out`` since the first process started."""
        return int(self._earlier[name] + self._latest.get(name, 0))

    def get(self, name: str, default: Any) -> Any:
        """Return a value, or ``default`` if it was not reported yet."""
        return self._latest.get(name, default)

    def of(self, name: str) -> Any:
        """Return a value; raise :class:`PeerUnreachable` if it was not reported yet."""
        if name not in self._latest:
            raise PeerUnreachable("the transport is not started")
        return self._latest[name]


class SubprocessTransport:
    """A ``Transport`` over a :class:`NodeTransport` (``over``) in a child process.

    The child reads, decodes, checks and refuses all input of peers. This process answers the
    admitted requests. A child that dies is replaced by another of the same identity and port. The
    validator must be a :class:`RecordRule` and the reputation an :class:`OwnFirst`, because only
    these can be sent to another process.
    """

    def __init__(
        self,
        identity: Path,
        *,
        counters: Counters | None = None,
        over: type[NodeTransport] = HivemindTransport,
        **settings: Any,
    ) -> None:
        self._over = f"{over.__module__}:{over.__qualname__}"
        self._settings = NodeSettings(identity, **settings)
        self._counters = counters or Counters()
        self._services: dict[str, tuple[Handler, HandlerLimits]] = {}
        self._reputation: OwnFirst | None = None
        self._heard: Callable[[bytes], None] = lambda record: None
        self._kept: dict[str, Any] = {}
        self._state = State()
        self._process: Process | None = None
        self._tasks = BackgroundTasks(partial(task_failed, self._counters))

    @property
    def peer_id(self) -> str:
        return str(self._state.of("peer_id"))

    @property
    def bytes_in(self) -> int:
        return self._state.bytes("bytes_in")

    @property
    def bytes_out(self) -> int:
        return self._state.bytes("bytes_out")

    def addresses(self) -> tuple[str, ...]:
        return tuple(self._state.of("addresses"))

    def peers(self) -> tuple[str, ...]:
        return tuple(self._state.get("peers", ())) if self._process else ()

    def reach(self) -> Reach:
        return reach_of(self._state.get("reach", {})) if self._process else Reach()

    async def start(self) -> None:
        self._process = await self._launch()
        self._tasks.spawn(self._supervise())
        self._tasks.spawn(self._send_reputations())

    async def close(self) -> None:
        await self._tasks.close()
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop()

    async def connect(self, address: str) -> str:
        return str(await self._call(DIAL_SECONDS, "connect", address))

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        check_size(value)
        return bool(await self._look_up(False, "store", key, subkey, value, expiry))

    async def read(self, key: str) -> dict[bytes, bytes]:
        return dict(await self._look_up({}, "read", key))

    async def request(
        self,
        peer: str,
        protocol: str,
        payload: bytes,
        *,
        limit: int,
        deadline: float,
        minimum_rate: float = MINIMUM_RATE,
    ) -> bytes:
        arguments = peer, protocol, payload
        limits = {"limit": limit, "deadline": deadline, "minimum_rate": minimum_rate}
        return bytes(await self._call(deadline, "request", *arguments, **limits))

    def handle(self, protocol: str, handler: Handler, limits: HandlerLimits) -> None:
        self._services[protocol] = handler, limits
        self._notify("handle", protocol, **asdict(limits))

    def use_validator(self, check: RecordCheck) -> None:
        if not isinstance(check, RecordRule):
            raise TypeError(f"another process can only check by a RecordRule, got {check!r}")
        self._keep("use_manifest", check.signed)

    def use_reputation(self, reputation: ReputationOf) -> None:
        if not isinstance(reputation, OwnFirst):
            raise TypeError(f"another process only takes an OwnFirst, got {reputation!r}")
        self._reputation = reputation
        self._keep("use_reputations", reputation.all())

    def watch(self, keys: Collection[str], heard: Callable[[bytes], None]) -> None:
        self._heard = heard
        self._keep("watch", list(keys))

    async def _launch(self) -> Process:
        # Leaves no process behind if it fails or is cancelled.
        process = await Process.start(
            {
                "answer": self._answer,
                "state": self._state.note,
                "count": self._count,
                "hear": lambda record: self._heard(record),
                "log": _log,
            }
        )
        try:
            async with asyncio.timeout(self._settings.start_timeout + START_SECONDS):
                level = logging.getLogger("swarm").getEffectiveLevel()
                await process.link.call("open", self._over, level, **self._plain_settings())
                for protocol, (_, limits) in self._services.items():
                    process.link.notify("handle", protocol, **asdict(limits))
                snapshot = dict(self._kept)
                for method, value in snapshot.items():
                    process.link.notify(method, value)
                await process.link.call("start")
                for method, value in self._kept.items():
                    if value is not snapshot.get(method):  # set while the process started
                        process.link.notify(method, value)
        except BaseException as error:
            await process.stop()
            if isinstance(error, TimeoutError | LinkLost):
                raise DaemonFailed(
                    f"the network process did not start: {error or 'no answer'}; increase "
                    "network.start_timeout on a busy machine"
                ) from error
            raise
        return process

    def _plain_settings(self) -> dict[str, Any]:
        plain = asdict(self._settings)
        paths = {name: str(value) for name, value in plain.items() if isinstance(value, Path)}
        return plain | paths

    async def _supervise(self) -> None:
        while True:
            assert self._process is not None
            reason = await self._process.ended()
            self._counters.add("network_restarts")
            logger.error("the network process %s; starting another", reason)
            listen = with_port_of(self.addresses(), self._settings.listen)
            self._settings = replace(self._settings, listen=listen)
            self._state.begin_again()
            self._process = await self._relaunch()

    async def _relaunch(self) -> Process:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                return await self._launch()
            except (TransportError, OSError) as error:
                logger.error("%s; next attempt in %g s", error, pause)

    async def _send_reputations(self) -> None:
        last_sent: dict[bytes, float] = {}
        while True:
            await asyncio.sleep(REMEMBERED_SECONDS)
            reputations = self._reputation.all() if self._reputation else {}
            if reputations != last_sent and self._keep("use_reputations", reputations):
                last_sent = reputations

    async def _answer(self, protocol: str, peer: str, request: bytes) -> bytes:
        handler, _ = self._services[protocol]
        return await handler(peer, request)

    def _count(self, deltas: dict[str, float]) -> None:
        for name, n in deltas.items():
            self._counters.add(name, n)

    def _notify(self, method: str, /, *args: Any, **options: Any) -> bool:
        return self._process is not None and self._process.link.notify(method, *args, **options)

    def _keep(self, method: str, value: Any) -> bool:
        # Sends a value to this process and to each later replacement.
        self._kept[method] = value
        return self._notify(method, value)

    async def _call(self, seconds: float, method: str, /, *args: Any, **options: Any) -> Any:
        if self._process is None:
            raise PeerUnreachable("the transport is not started")
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                return await self._process.link.call(method, *args, **options)
        except TimeoutError as error:
            message = f"the network process did not answer within {seconds + GRACE_SECONDS:g} s"
            raise DeadlineExceeded(message) from error
        except LinkLost as error:
            raise PeerUnreachable("the network process is gone; another is started") from error

    async def _look_up(self, default: Any, method: str, *args: Any) -> Any:
        try:
            return await self._call(LOOKUP_SECONDS, method, *args)
        except TransportError as error:
            self._counters.add("dht_failed", call=method)
            # The loss of the process is already logged and affects each call until the restart.
            level = logging.DEBUG if isinstance(error.__cause__, LinkLost) else logging.WARNING
            logger.log(level, "DHT %s failed: %s", method, error)
            return default


def _log(name: str, level: int, text: str) -> None:
    logging.getLogger(name).log(level, "%s", text)
