"""Errors as they cross from one process to another."""

from __future__ import annotations

import logging

from swarm.transport.machine import DaemonFailed, PortTaken
from swarm.transport.transport import (
    ClockSkew,
    DeadlineExceeded,
    PeerUnreachable,
    RecordTooLarge,
    Refusal,
    Refused,
    ResponseTooLarge,
    TooSlow,
    TransportError,
)

logger = logging.getLogger(__name__)

REFUSAL = "refusal"
INTERNAL = "internal"

_KINDS: dict[str, type[TransportError]] = {
    kind.code: kind
    for kind in (
        ClockSkew,
        DaemonFailed,
        DeadlineExceeded,
        PeerUnreachable,
        PortTaken,
        RecordTooLarge,
        Refused,
        ResponseTooLarge,
        TooSlow,
    )
}


def told(error: Exception) -> tuple[str, str]:
    """Code and text of an error; one that no caller expects is logged with its trace here."""
    match error:
        case Refusal():
            return REFUSAL, error.reason
        case TransportError():
            return error.code, str(error)
    logger.error("a call from the other process failed", exc_info=error)
    return INTERNAL, f"{type(error).__name__}: {error}"


def raised(code: str, text: str) -> Exception:
    """The error again, to be raised."""
    return Refusal(text) if code == REFUSAL else _KINDS.get(code, TransportError)(text)
