"""Groups as layouts up to 4 of the journal kept them, each as a frame's body, in their new form."""

from __future__ import annotations

from protocol import schema
from protocol.batch import decode_batch, encode_group
from protocol.codec import decode, encode
from protocol.errors import ProtocolError
from swarm.origin import Origin
from swarm.packing import ROW_LIMITS, as_bytes, pack_waiting


def repacked_pooled(data: bytes) -> bytes:
    """A row of the pool; what cannot be read stays, for whoever takes it from there to find."""
    try:
        _, prompt, _, plain = schema.items(decode(data, ROW_LIMITS), "row of the pool", 4, 4)
        batch = decode_batch(as_bytes(plain))
        (group,) = batch.groups
        rewards = list(group.rewards)
        return encode([prompt, batch.encoding, batch.policy_step, rewards, encode_group(group)])
    except (ProtocolError, ValueError):
        return data


def repacked_waiting(data: bytes) -> bytes:
    """A waiting group; what cannot be read stays as it is."""
    try:
        batch = decode_batch(data)
        origin = Origin(
            batch.policy_step, batch.model, batch.encoding, batch.temperature, batch.max_new_tokens
        )
        return pack_waiting(batch.groups[0], origin)
    except ProtocolError:
        return data
