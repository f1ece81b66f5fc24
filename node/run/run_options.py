"""How a command line wants a run to speak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is no setting of the node itself.

    Attributes:
        json: standard output carries JSON lines and nothing else.
    """

    json: bool = False
