"""Groups as bytes in the journal: one-group batches of the wire format, and what is added to them.

Log-probs are therefore kept as binary16, which is what every reader of a frame gets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from protocol import schema
from protocol.batch import MAX_PLAIN_BYTES, decode_batch, encode_batch
from protocol.codec import Limits, decode, encode
from protocol.errors import BadSchema
from protocol.rollout import Batch
from swarm.pooled_group import PooledGroup

_SIZE = 2 * MAX_PLAIN_BYTES
_LIMITS = Limits(_SIZE, depth=2, items=1 << 16, str_len=_SIZE, bin_len=_SIZE)


def pack_pooled(pooled: PooledGroup) -> bytes:
    """Everything in a pooled group but its author and its time of receipt."""
    batch = Batch(
        sequence=0,
        policy_step=pooled.policy_step,
        created=0.0,
        model="-",
        encoding=pooled.encoding,
        temperature=pooled.temperature,
        max_new_tokens=1,
        groups=(pooled.group,),
    )
    claimed = pack_rewards(pooled.claimed)
    return encode([pooled.content_id, pooled.prompt, claimed, encode_batch(batch)])


def unpack_pooled(author: bytes, received: float, data: bytes) -> PooledGroup:
    """The pooled group that :func:`pack_pooled` turned into ``data``.

    Raises:
        ProtocolError: for anything else, as in a file that somebody else has written to.
    """
    row = schema.items(decode(data, _LIMITS), "row of the pool", 4, 4)
    content_id, claimed, plain = (row[n] for n in (0, 2, 3))
    prompt = schema.text(row[1], "prompt", _SIZE)
    if not isinstance(claimed, bytes) or not isinstance(plain, bytes):
        raise BadSchema("row of the pool: rewards and batch are byte strings")
    batch = decode_batch(plain)
    if len(batch.groups) != 1 or len(claimed) != 8 * len(batch.groups[0].completions):
        raise BadSchema("row of the pool: one group and a reward for each of its completions")
    return PooledGroup(
        author=author,
        content_id=schema.blob(content_id, "content id", 32),
        group=batch.groups[0],
        prompt=prompt,
        claimed=unpack_rewards(claimed),
        encoding=batch.encoding,
        temperature=batch.temperature,
        policy_step=batch.policy_step,
        received=received,
    )


def pack_rewards(rewards: Sequence[float]) -> bytes:
    """Little-endian float64 words."""
    return struct.pack(f"<{len(rewards)}d", *rewards)


def unpack_rewards(data: bytes) -> tuple[float, ...]:
    """The rewards that :func:`pack_rewards` turned into ``data``."""
    return struct.unpack(f"<{len(data) // 8}d", data)
