"""A frame: one signed batch of groups, named by the hash of its bytes.

The envelope (:mod:`protocol.envelope`) holds a body (:mod:`protocol.compression`) whose plain form
is :mod:`protocol.batch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from protocol import compression, envelope
from protocol.admission_rule import check_author
from protocol.batch import decode_batch, encode_batch
from protocol.errors import BadSchema, TooLarge, TooManyItems
from protocol.identity import Identity
from protocol.limits import MAX_FRAME_BYTES, PLAIN_RATIO
from protocol.manifest import Manifest
from protocol.rollout import Batch, Completion, Group

OVERHEAD_BYTES = envelope.HEAD_BYTES + compression.HEAD_BYTES


@dataclass(frozen=True, slots=True)
class OpenFrame:
    """A frame whose signature and schema hold; what it claims is not verified yet.

    Attributes:
        author: public key, 32 bytes.
        content_id: SHA-256 of the whole frame.
        batch: what the author shares.
    """

    author: bytes
    content_id: bytes
    batch: Batch


def seal(batch: Batch, identity: Identity, swarm_id: bytes, *, compress: bool = True) -> bytes:
    """Signs a batch into a frame. Whatever this returns, :func:`open_frame` opens.

    That holds within the protocol's hard limits; :func:`check_batch` tells whether the manifest
    allows the batch, and the caller compares the frame's length with ``max_frame_bytes``.

    Raises:
        ProtocolError: the batch breaks the schema or a hard limit.
    """
    plain = encode_batch(batch)
    decode_batch(plain)
    frame = envelope.close(
        envelope.FRAME, swarm_id, identity, compression.pack(plain, compress=compress)
    )
    if len(frame) > MAX_FRAME_BYTES:
        raise TooLarge(f"frame of {len(frame)} bytes, limit {MAX_FRAME_BYTES}: seal fewer groups")
    return frame


def open_frame(frame: bytes, swarm_id: bytes, manifest: Manifest) -> OpenFrame:
    """The batch in a frame, everything checked that needs neither clock, tasks nor history.

    Raises:
        ProtocolError: in the order size, magic, swarm, key, signature, admission, compression,
            encoding, schema, the manifest's limits.
    """
    author, body = envelope.open_envelope(envelope.FRAME, frame, swarm_id, manifest.max_frame_bytes)
    check_author(manifest.admission, author)
    most = PLAIN_RATIO * manifest.max_frame_bytes
    batch = decode_batch(compression.unpack(body, most), most)
    check_batch(batch, manifest)
    return OpenFrame(author, content_id(frame), batch)


def content_id(frame: bytes) -> bytes:
    """SHA-256 of a whole frame, 32 bytes."""
    return sha256(frame).digest()


def check_batch(batch: Batch, manifest: Manifest) -> None:
    """Returns if every group keeps to the manifest.

    Raises:
        BadSchema, TooManyItems, TooLarge
    """
    for group in batch.groups:
        check_group(group, manifest)


def check_group(group: Group, manifest: Manifest) -> None:
    """Returns if a group keeps to the manifest.

    Raises:
        BadSchema, TooManyItems, TooLarge
    """
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


def _check_completion(completion: Completion, most: int) -> None:
    size = sum(len(segment.text.encode()) for segment in completion.segments)
    if size > most:
        raise TooLarge(f"completion: {size} bytes of text, limit {most}")
    count = sum(len(segment.tokens.ids) for segment in completion.segments if segment.tokens)
    if count > most:
        raise TooLarge(f"completion: {count} tokens, limit {most}")
