"""One valid sample of each message, and helpers to forge invalid ones."""

import struct
from collections.abc import Callable
from dataclasses import replace

import zstandard

from protocol import envelope
from protocol.announcement import Announcement, offer_of, shard_of
from protocol.codec import MAX_ITEMS, CodecLimits, decode, encode
from protocol.envelope import compress_body
from protocol.frame import seal
from protocol.identity import Identity
from protocol.manifest import AllowList, EnvSpec, Manifest, ProofOfWork, sign_manifest, swarm_id
from protocol.rollout import Batch, Completion, Finish, Group, Segment, Tokens, Writer, encode_batch

ALICE = Identity.from_seed(bytes(range(32)))
BOB = Identity.from_seed(bytes(range(32, 64)))
MALLORY = Identity.from_seed(b"mallory forges whatever she can!")

MANIFEST = Manifest(
    name="vectors",
    founder=ALICE.author,
    created=1750000000.0,
    catalogue=(
        EnvSpec("gcd", "reasoning-gym", "0.1.25", ('{"max_value":24}', "{}"), "{question}", "text"),
        EnvSpec("riddles", "jsonl", "ab" * 32, ("{}",), "Answer: {question}\n", "boxed"),
    ),
    epoch_seconds=60.0,
    max_frame_bytes=4096,
    max_groups_per_epoch=16,
    max_completions=4,
    max_text_bytes=256,
)
SIGNED = sign_manifest(MANIFEST, ALICE)
SWARM = swarm_id(SIGNED)
CLOSED = replace(MANIFEST, admission=AllowList((ALICE.author,)))
WORKING = replace(MANIFEST, admission=ProofOfWork(12))
OTHER_SWARM = bytes(range(32))

EPOCH = 29166667
NOW = EPOCH * 60.0 + 30.0

ENCODING = bytes(range(100, 132))

Change = Callable[[dict], object]

TOKENS = Tokens(ids=(5, 70000, 2), logprobs=(-0.5, -1.25, 0.0), versions=(7, 7, 8))


def completion(text: str = "six", reward: float = 1.0, tokens: Tokens | None = TOKENS):
    return Completion((Segment(Writer.POLICY, text, tokens),), reward, Finish.STOP)


def group(index: int = 0, *completions: Completion, env: str = "gcd", level: int = 0) -> Group:
    texts = completions or (completion(), completion("seven", 0.0, None))
    return Group(env, level, EPOCH, index, tuple(texts))


def batch(*groups: Group, **changes: object) -> Batch:
    made = Batch(
        sequence=1750000000123,
        policy_step=8,
        created=1750000015.5,
        model="tiny",
        encoding=ENCODING,
        temperature=1.0,
        max_new_tokens=64,
        groups=groups or (group(),),
    )
    return replace(made, **changes)


def dialogue() -> Completion:
    """Make two policy turns around an environment turn, truncated at the length cap."""
    segments = (
        Segment(Writer.POLICY, "left", TOKENS),
        Segment(Writer.ENVIRONMENT, "You hit a wall. ✗"),
        Segment(Writer.POLICY, "right"),
    )
    return Completion(segments, 0.5, Finish.LENGTH)


FRAME = seal(batch(), ALICE, SWARM, compress=False)


def announcement(identity: Identity = ALICE, epoch: int = EPOCH, **changes) -> Announcement:
    offer = offer_of(FRAME, batch(), MANIFEST)
    made = Announcement(
        epoch=epoch,
        depth=2,
        shard=shard_of(identity.author, epoch, 2),
        sequence=1750000000124,
        policy_step=8,
        expiry=(epoch + 2) * MANIFEST.epoch_seconds,
        nonce=0,
        offers=(offer,),
    )
    return replace(made, **changes)


ROOMY = CodecLimits(1 << 22, 9, MAX_ITEMS, 1 << 20, 1 << 20)


def plain_wire(of: Batch | None = None) -> dict:
    """Return the body of a batch as the decoder sees it, ready to be changed."""
    return decode(encode_batch(of or batch()), ROOMY)


def bent(kind: envelope.EnvelopeKind, message: bytes, change: Change) -> bytes:
    """Return a message around a changed body, correctly signed by mallory."""
    wire = decode(message[envelope.HEAD_BYTES :], ROOMY)
    change(wire)
    return envelope.close(kind, message[8:40], MALLORY, encode(wire))


def forged(
    kind: envelope.EnvelopeKind, message: bytes, elsewhere: bytes, other: envelope.EnvelopeKind
) -> dict[str, tuple[bytes, str]]:
    """Return envelopes with false claims, and the errors they must raise."""
    borrowed = envelope.close(other, SWARM, ALICE, message[envelope.HEAD_BYTES :])
    return {
        "another swarm": (elsewhere, "wrong_swarm"),
        "moved from another swarm": (message[:40] + elsewhere[40:], "bad_signature"),
        "another domain": (kind.magic + borrowed[8:], "bad_signature"),
        "another author": (message[:40] + MALLORY.author + message[72:], "bad_signature"),
        "small-order author": (message[:40] + bytes(32) + message[72:], "bad_key"),
    }


def framed(wire: object, identity: Identity = MALLORY) -> bytes:
    return framed_plain(encode(wire), identity)


def framed_plain(plain: bytes, identity: Identity = MALLORY) -> bytes:
    return framed_body(compress_body(plain, compress=False), identity)


def framed_body(body: bytes, identity: Identity = MALLORY, swarm: bytes = SWARM) -> bytes:
    return envelope.close(envelope.FRAME, swarm, identity, body)


def packed_body(packed: bytes, declared: int, identity: Identity = MALLORY) -> bytes:
    return framed_body(struct.pack(">BI", 1, declared) + packed, identity)


def zipped(plain: bytes, declared: int, identity: Identity = MALLORY, **settings: object) -> bytes:
    return packed_body(zstandard.ZstdCompressor(**settings).compress(plain), declared, identity)


def record(wire: object, identity: Identity = MALLORY) -> bytes:
    return envelope.close(envelope.ANNOUNCEMENT, SWARM, identity, encode(wire))
