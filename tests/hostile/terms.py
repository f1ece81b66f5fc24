"""What all peers of a siege have in common: the swarm, and the frames that went around in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from node.tasks.catalogue import open_catalogue
from node.tasks.task import TaskSource
from protocol.announcement import epoch_of
from protocol.manifest import Manifest, open_manifest, swarm_id


@dataclass(frozen=True, slots=True)
class Terms:
    """A swarm's manifest, as signed and opened, and its tasks."""

    signed: bytes
    manifest: Manifest
    swarm: bytes
    sources: Mapping[str, TaskSource]

    @classmethod
    def of(cls, signed: bytes) -> Terms:
        manifest = open_manifest(signed)
        return cls(signed, manifest, swarm_id(signed), open_catalogue(manifest.catalogue, {}))

    @property
    def epoch(self) -> int:
        """The present one."""
        return epoch_of(time.time(), self.manifest.epoch_seconds)


@dataclass(frozen=True, slots=True)
class Served:
    """A frame that left a peer."""

    author: bytes
    frame: bytes
    at: float
