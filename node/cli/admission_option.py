"""``--admission``: who may take part in a swarm, as one word."""

from __future__ import annotations

from pathlib import Path

from node.errors import UsageError
from protocol.errors import ProtocolError
from protocol.identity import author_of
from protocol.manifest import AdmissionRule, AllowList, Open, ProofOfWork

OPTION = "--admission"


def parse_admission(text: str) -> AdmissionRule:
    """``open``, ``allow:FILE`` (a peer id a line, ``#`` begins a comment) or ``pow:BITS``.

    Raises:
        UsageError: it is none of them, or what it names is wrong.
    """
    kind, _, value = text.partition(":")
    try:
        if kind == "open" and not value:
            return Open()
        if kind == "allow" and value:
            return AllowList(_authors(Path(value)))
        if kind == "pow" and value.isdecimal():
            return ProofOfWork(int(value))
    except ProtocolError as error:
        raise UsageError(OPTION, f"{text} ({error})", "Change that value.") from error
    raise UsageError(OPTION, text, "Write open, allow:FILE or pow:BITS.")


def _authors(path: Path) -> tuple[bytes, ...]:
    try:
        lines = [
            line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise UsageError(
            f"cannot read the allow list ({reason})", path, "Write one peer id a line."
        ) from error
    return tuple(sorted({author_of(line) for line in lines if line}))
