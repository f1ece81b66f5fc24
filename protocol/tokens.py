"""Token ids, log-probs and policy versions as byte strings and runs.

Ids are little-endian 32-bit words, log-probs little-endian IEEE 754 binary16, versions runs of
equal values: ``[version, count, version, count, …]``.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from itertools import groupby

from protocol import schema
from protocol.errors import BadSchema
from protocol.rollout import Tokens

_FIELDS = ("ids", "logprobs", "versions")
_LEAST_LOGPROB = -65504.0
_WORD = next(code for code in "IL" if array(code).itemsize == 4)


def tokens_to_wire(tokens: Tokens) -> dict[str, object]:
    """A map of three fields. Log-probs are clamped to what binary16 holds, [-65504, 0].

    Raises:
        BadSchema: lengths differ, or a value is out of range.
    """
    count = len(tokens.ids)
    if not count == len(tokens.logprobs) == len(tokens.versions):
        raise BadSchema("tokens: ids, logprobs and versions differ in length")
    # In this order of arguments a NaN stays one, for the reader's check to find.
    logprobs = [min(max(value, _LEAST_LOGPROB), 0.0) for value in tokens.logprobs]
    runs: list[int] = []
    for version, run in groupby(tokens.versions):
        runs += (version, sum(1 for _ in run))
    try:
        ids = struct.pack(f"<{count}I", *tokens.ids)
    except struct.error as error:
        raise BadSchema(f"token ids: {error}") from error
    return {"ids": ids, "logprobs": struct.pack(f"<{count}e", *logprobs), "versions": runs}


def tokens_from_wire(wire: object) -> Tokens:
    """The inverse of :func:`tokens_to_wire`, up to the rounding of log-probs.

    Raises:
        BadSchema: anything else than what that function writes.
    """
    ids, logprobs, versions = schema.fields(wire, _FIELDS, "tokens")
    if type(ids) is not bytes or not ids or len(ids) % 4:
        raise BadSchema("tokens: ids takes one or more words of 4 bytes")
    count = len(ids) // 4
    words = array(_WORD, ids)
    if sys.byteorder == "big":
        words.byteswap()
    halves = struct.unpack(f"<{count}e", schema.blob(logprobs, "tokens: logprobs", 2 * count))
    # A NaN or an infinity anywhere makes the sum one.
    if not math.isfinite(sum(halves)) or max(halves) > 0.0:
        raise BadSchema("tokens: a log-prob is not a number in [-65504, 0]")
    return Tokens(tuple(words), halves, _expand(versions, count))


def _expand(wire: object, count: int) -> tuple[int, ...]:
    """Runs written out, checked before anything is built."""
    runs = schema.items(wire, "tokens: versions", 2 * count)
    if len(runs) % 2:
        raise BadSchema("tokens: versions takes pairs of version and count")
    pairs: list[tuple[int, int]] = []
    left = count
    for at in range(0, len(runs), 2):
        version = schema.integer(runs[at], "tokens: version")
        length = schema.integer(runs[at + 1], "tokens: run of versions", 1, left)
        if pairs and pairs[-1][0] == version:
            raise BadSchema("tokens: two runs of one version stand side by side")
        pairs.append((version, length))
        left -= length
    if left:
        raise BadSchema(f"tokens: runs of versions leave {left} of {count} tokens out")
    return tuple(version for version, length in pairs for _ in range(length))
