"""What a node says of itself for other commands to read: ``status.json`` in its run folder."""

from __future__ import annotations

import os
from typing import Any

from node.monitor.record import RoundRecord
from node.network.membership import Membership
from node.storage.run_folder import RunFolder
from swarm.member import PeerInfo


class StatusFile:
    """A sink that replaces ``status.json`` with every record."""

    def __init__(self, folder: RunFolder, membership: Membership) -> None:
        self._folder = folder
        self._membership = membership

    def write(self, record: RoundRecord | None) -> None:
        """Write the node's state; without a record while there is none."""
        membership, status = self._membership, self._membership.status()
        self._folder.write_status(
            {
                "pid": os.getpid(),
                "peer_id": status.peer_id,
                "addresses": status.addresses,
                "swarm_id": membership.swarm_id.hex(),
                "swarm_name": membership.manifest.name,
                "record": record.to_dict() if record else None,
                "peers": [self._peer(peer) for peer in status.peers],
            }
        )

    def close(self) -> None:
        """The last state stays; the folder's lock tells that nobody runs."""

    def _peer(self, peer: PeerInfo) -> dict[str, Any]:
        account = self._membership.accounts.get(peer.author or b"")
        return {
            "peer_id": peer.peer_id,
            "connected": peer.connected,
            "policy_step": peer.policy_step,
            "bytes_in": account.bytes_in,
            "bytes_out": account.bytes_out,
            "admitted": account.admitted,
            "refused": dict(account.refused),
            "strikes": account.strikes,
            "banned": self._membership.accounts.banned(account.author),
        }
