"""Frames: signed batches of groups, named by the hash of their bytes.

An envelope holds a compressed :class:`Batch`. :func:`pack` distributes groups over frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby

import zstandard

from protocol import envelope
from protocol.codec import MAX_FRAME_BYTES, MAX_GROUPS, MAX_ITEMS, PLAIN_RATIO
from protocol.envelope import COMPRESSED_HEAD_BYTES, compress_body, decompress_body
from protocol.errors import BadSchema, TooLarge, TooManyItems
from protocol.identity import Identity
from protocol.manifest import Manifest, check_author
from protocol.rollout import (
    MAX_PLAIN_BYTES,
    Batch,
    Completion,
    EncodedGroup,
    Group,
    decode_batch,
    encode_batch,
)

OVERHEAD_BYTES = envelope.HEAD_BYTES + COMPRESSED_HEAD_BYTES


@dataclass(frozen=True, slots=True)
class OpenFrame:
    """A frame with a valid signature and schema; its claims are not verified yet.

    ``content_id`` is the SHA-256 of the whole frame.
    """

    author: bytes
    content_id: bytes
    batch: Batch


def seal(
    batch: Batch,
    identity: Identity,
    swarm_id: bytes,
    *,
    compress: bool = True,
    encoded: Sequence[EncodedGroup] = (),
) -> bytes:
    """Sign a batch into a frame; raise ``ProtocolError`` beyond schema or hard limits.

    The caller checks the manifest's limits (:func:`check_batch`) and ``max_frame_bytes``.
    ``encoded`` are its groups from :meth:`EncodedGroup.decoded`; they are not decoded again.
    """
    plain_body = encode_batch(batch, [entry.plain for entry in encoded])
    _check_body(batch, plain_body, encoded)
    body = compress_body(plain_body, compress=compress)
    frame = envelope.close(envelope.FRAME, swarm_id, identity, body)
    if len(frame) > MAX_FRAME_BYTES:
        raise TooLarge(f"frame of {len(frame)} bytes, limit {MAX_FRAME_BYTES}: seal fewer groups")
    return frame


def _check_body(batch: Batch, plain_body: bytes, encoded: Sequence[EncodedGroup]) -> None:
    """Check what :func:`open_frame` will, without decoding ``encoded`` groups once more."""
    if not encoded:
        decode_batch(plain_body)
        return
    decode_batch(encode_batch(batch, [encoded[0].plain]))
    groups = [entry.group for entry in encoded]
    if len({(group.epoch, group.index) for group in groups}) < len(groups):
        raise BadSchema("groups: one task of the author appears twice")
    if len(groups) > MAX_GROUPS:
        raise TooManyItems(f"groups: {len(groups)} elements, limit {MAX_GROUPS}")
    if (items := _BATCH_BYTES + sum(map(item_count, groups))) > MAX_ITEMS:
        raise TooManyItems(f"batch of {items} items, limit {MAX_ITEMS}")
    if len(plain_body) > MAX_PLAIN_BYTES:
        raise TooLarge(f"batch of {len(plain_body)} bytes, limit {MAX_PLAIN_BYTES}")


def open_frame(frame: bytes, swarm_id: bytes, manifest: Manifest) -> OpenFrame:
    """Open a frame and check everything except clock, tasks and history.

    Checks in the order size, magic, swarm, key, signature, admission, compression, encoding,
    schema, the manifest's limits; raises ``ProtocolError``.
    """
    author, body = envelope.open_envelope(envelope.FRAME, frame, swarm_id, manifest.max_frame_bytes)
    check_author(manifest.admission, author)
    limit = PLAIN_RATIO * manifest.max_frame_bytes
    batch = decode_batch(decompress_body(body, limit), limit)
    check_batch(batch, manifest)
    return OpenFrame(author, content_id(frame), batch)


def content_id(frame: bytes) -> bytes:
    """Return the SHA-256 of a whole frame, 32 bytes."""
    return sha256(frame).digest()


def check_batch(batch: Batch, manifest: Manifest) -> None:
    """Check every group against the manifest."""
    for group in batch.groups:
        check_group(group, manifest)


def check_group(group: Group, manifest: Manifest) -> None:
    """Check a group against the manifest."""
    levels = len(manifest.env(group.env).levels)
    if group.level >= levels:
        raise BadSchema(f"group: level {group.level} of {group.env}, which has {levels}")
    if group.index >= manifest.max_groups_per_epoch:
        raise BadSchema(f"group: index {group.index}, limit {manifest.max_groups_per_epoch}")
    if len(group.completions) > manifest.max_completions:
        raise TooManyItems(
            f"group: {len(group.completions)} completions, limit {manifest.max_completions}"
        )
    for completion in group.completions:
        _check_completion(completion, manifest.max_text_bytes)


def _check_completion(completion: Completion, limit: int) -> None:
    size = sum(len(segment.text.encode()) for segment in completion.segments)
    if size > limit:
        raise TooLarge(f"completion: {size} bytes of text, limit {limit}")
    count = sum(len(segment.tokens.ids) for segment in completion.segments if segment.tokens)
    if count > limit:
        raise TooLarge(f"completion: {count} tokens, limit {limit}")


_Size = tuple[int, int, int]  # bytes on the wire, plain bytes, items
_BATCH_BYTES = 512  # bound on a body's bytes and items outside its groups


@dataclass(frozen=True, slots=True)
class Packing:
    """Groups by frame, in the given order, and those that are too large for any frame."""

    frames: tuple[tuple[EncodedGroup, ...], ...]
    oversize: tuple[EncodedGroup, ...]


def pack(groups: Sequence[EncodedGroup], max_frame_bytes: int, *, compress: bool = True) -> Packing:
    """Fill one frame after the other, counting each group's own compressed size.

    Groups that fit into one frame without compression are not compressed to be measured.
    """
    frames: list[list[EncodedGroup]] = []
    oversize: list[EncodedGroup] = []
    remaining: _Size = (0, 0, 0)
    wire_limit = max_frame_bytes - OVERHEAD_BYTES - _BATCH_BYTES
    capacity = wire_limit, PLAIN_RATIO * max_frame_bytes - _BATCH_BYTES, MAX_ITEMS - _BATCH_BYTES
    compress = compress and sum(len(group.plain) for group in groups) > wire_limit
    for group in groups:
        size = _measure(group, compress)
        if not _fits(size, capacity):
            oversize.append(group)
            continue
        if not _fits(size, remaining) or len(frames[-1]) >= MAX_GROUPS:
            frames.append([])
            remaining = capacity
        frames[-1].append(group)
        remaining = remaining[0] - size[0], remaining[1] - size[1], remaining[2] - size[2]
    return Packing(tuple(map(tuple, frames)), tuple(oversize))


def without_tokens(group: Group) -> Group:
    """Return the group as text alone, for a group whose token ids make it too large."""
    completions = tuple(
        replace(c, segments=tuple(replace(s, tokens=None) for s in c.segments))
        for c in group.completions
    )
    return replace(group, completions=completions)


def _fits(size: _Size, capacity: _Size) -> bool:
    return all(value <= limit for value, limit in zip(size, capacity, strict=True))


def _measure(entry: EncodedGroup, compress: bool) -> _Size:
    plain_size = len(entry.plain)
    size = len(zstandard.ZstdCompressor(level=3).compress(entry.plain)) if compress else plain_size
    return min(size, plain_size), plain_size, item_count(entry.group)


def item_count(group: Group) -> int:
    """Count the items of an encoded group as the decoder does: values, keys and containers."""
    count = 11  # the map, its five keys, four scalars and the array of completions
    for completion in group.completions:
        count += 7 + 7 * len(completion.segments)
        for segment in completion.segments:
            if segment.tokens is not None:
                count += 6 + 2 * sum(1 for _ in groupby(segment.tokens.versions))
    return count
