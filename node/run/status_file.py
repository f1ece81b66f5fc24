"""What a node says of itself for other commands to read: ``status.json`` in its run folder."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from node.errors import NodeError
from node.monitor.record import RoundRecord
from node.network.membership import Membership
from node.storage.run_folder import RunFolder
from swarm.accounts import Account
from swarm.member import PeerInfo

log = logging.getLogger(__name__)

STARTING, RUNNING, STOPPING, STOPPED = "starting", "running", "stopping", "stopped"
CRASHED = "crashed"
"""What a process that said nothing at its end has done."""


class StatusFile:
    """A sink that keeps ``status.json`` true from a process's start to its end.

    Until there is something newer it goes on saying what the last process did. Its calls may come
    from several threads.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._membership: Membership | None = None
        self._lock = threading.Lock()
        self._told: dict[str, Any] = {}
        self._ended = False

    def start(self) -> None:
        """Say that this process, which holds the folder, starts.

        Where no process has said anything yet there is no file before :meth:`run`: whoever reads
        one finds all of it.
        """
        if not self._folder.status.exists():
            return
        try:
            self._told = self._folder.read_status()
            self._tell(STARTING, pid=os.getpid())
        except NodeError as error:
            log.warning("saying that this node starts failed: %s", error)

    def run(self, membership: Membership) -> None:
        """Say that the node is a member and works."""
        self._membership = membership
        self.write(None)

    def write(self, record: RoundRecord | None) -> None:
        """Say how the node is after a round; without a record while there is none."""
        assert self._membership is not None, "it is told first that the node runs"
        membership, status = self._membership, self._membership.status()
        reach, stopping = status.reach, self._told.get("state") == STOPPING
        self._tell(
            STOPPING if stopping else RUNNING,
            pid=os.getpid(),
            peer_id=status.peer_id,
            addresses=status.addresses,
            reach={"way": reach.way, "cause": reach.cause, "remedy": reach.remedy},
            swarm_id=membership.swarm_id.hex(),
            swarm_name=membership.manifest.name,
            record=record.to_dict() if record else self._told.get("record"),
            peers=[self._peer(peer) for peer in status.peers],
        )

    def stop(self) -> None:
        """Say that the node was told to stop; nothing while the folder is not its own."""
        if self._told:
            self._tell(STOPPING)

    def stop_after(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """What hears that a signal came: ``tell``, and then whoever reads the file."""

        def heard(line: str) -> None:
            tell(line)
            self.stop()

        return heard

    def close(self) -> None:
        """Say that the last round is done, and the rest is being closed."""
        self._tell(STOPPING)

    def end(self) -> None:
        """Say that the process has ended, in order or with an error that it told."""
        try:
            if self._told:
                self._tell(STOPPED)
        except NodeError as error:
            log.warning("saying that this node has stopped failed: %s", error)

    def _tell(self, state: str, **news: Any) -> None:
        with self._lock:
            if self._ended:
                return  # a signal is told on a thread of its own, which may come last
            self._ended = state == STOPPED
            self._told |= {**news, "state": state, "time": time.time()}
            self._folder.write_status(self._told)

    def _peer(self, peer: PeerInfo) -> dict[str, Any]:
        assert self._membership is not None
        account = self._membership.accounts.get(peer.author or b"")
        return {
            "peer_id": peer.peer_id,
            "connected": peer.connected,
            "link": peer.link,
            "swarm_id": peer.swarm.hex() if peer.swarm else None,
            "policy_step": peer.policy_step,
            "bytes_in": account.bytes_in,
            "bytes_out": account.bytes_out,
            "admitted": account.admitted,
            "heard": peer.heard,
            "admitted_at": account.admitted_at or None,
            "seed": _is_seed(peer, account),
            "refused": dict(account.refused),
            "strikes": account.strikes,
            "banned": self._membership.accounts.banned(account.author),
        }


def _is_seed(peer: PeerInfo, account: Account) -> bool:
    """Whether a peer does what a seed does: it announces itself and has never shared a group.

    A node is one until its first round is done: the protocol tells them apart by deeds alone.
    """
    return peer.policy_step == 0 and not peer.groups and not account.admitted


def present_status(folder: RunFolder) -> dict[str, Any]:
    """What is true of a node now, by its status file and by who holds its folder.

    Besides what the file says: ``running``, ``state`` and ``age_s``, seconds since it was written.
    A node that does not run is connected to nobody.

    Raises:
        NodeError: it never ran, or its folder may not be read.
    """
    holder = folder.holder()
    try:
        told: Mapping[str, Any] = folder.read_status()
    except NodeError:
        if holder is None:
            raise
        told = {}
    state = _state(told, holder)
    works = state in (RUNNING, STOPPING)
    peers = [_now(peer, works) for peer in told.get("peers", [])]
    age = max(0.0, time.time() - told["time"]) if "time" in told else None
    return {
        **dict.fromkeys(("peer_id", "swarm_id", "swarm_name", "record")),
        "addresses": [],
        "pid": holder,
        **told,
        "peers": peers,
        "running": holder is not None,
        "state": state,
        "age_s": age,
    }


def _now(peer: Mapping[str, Any], works: bool) -> dict[str, Any]:
    """What was told of a peer, as far as it holds for a node that works or does not."""
    present = {**peer, "connected": works and peer.get("connected", False)}
    return present if works or "link" not in peer else {**present, "link": None}


def _state(told: Mapping[str, Any], holder: int | None) -> str:
    said = told.get("state", RUNNING if holder else STOPPED)  # not said by an earlier release
    if holder is None:
        return STOPPED if said == STOPPED else CRASHED
    return str(said) if told.get("pid") == holder else STARTING
