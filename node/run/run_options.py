"""How a command line wants a run to speak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is no setting of the node itself.

    Attributes:
        json: standard output carries JSON lines and nothing else.
        swarm: id of the swarm to move to, in hex, or how it begins; empty to stay.
    """

    json: bool = False
    swarm: str = ""
