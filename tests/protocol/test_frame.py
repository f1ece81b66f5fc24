"""Sealed frames open unchanged and stay small; bad frames are refused by name."""

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protocol import errors
from protocol.codec import MAX_FRAME_BYTES, MAX_GROUPS, MAX_ITEMS, CodecLimits, decode, encode
from protocol.errors import BadEncoding, BadSchema, ProtocolError, TooLarge, TooManyItems
from protocol.frame import (
    check_batch,
    content_id,
    item_count,
    open_frame,
    pack,
    seal,
    without_tokens,
)
from protocol.rollout import (
    Batch,
    EncodedGroup,
    Group,
    Tokens,
    encode_batch,
    tokens_from_wire,
    tokens_to_wire,
)
from tests.protocol.cases_frame import completion_of, in_tokens, segment_of, tokens_of
from tests.protocol.samples import (
    ALICE,
    FRAME,
    MANIFEST,
    SWARM,
    batch,
    completion,
    dialogue,
    framed,
    framed_body,
    framed_plain,
    group,
    packed_body,
    plain_wire,
    zipped,
)
from tests.protocol.strategies import batches
from tests.protocol.strategies import groups as any_group

PLAIN = encode_batch(batch())
SIZE = 4096


@given(batches)
def test_sealed_batch_round_trips(shared: Batch) -> None:
    roomy = replace(MANIFEST, max_frame_bytes=1 << 20)
    for compress in (False, True):
        opened = open_frame(seal(shared, ALICE, SWARM, compress=compress), SWARM, roomy)
        assert opened.batch == shared
        assert opened.author == ALICE.author


def test_dialogue_round_trips_and_content_id_hashes_the_frame() -> None:
    frame = seal(batch(group(0, dialogue(), completion())), ALICE, SWARM)
    opened = open_frame(frame, SWARM, MANIFEST)
    assert opened.batch.groups[0].completions[0] == dialogue()
    assert opened.batch.groups[0].completions[0].text == "leftright"
    assert opened.content_id == content_id(frame) == sha256(frame).digest()
    repetitive = batch(*map(group, range(16)))
    plain = seal(repetitive, ALICE, SWARM, compress=False)
    assert len(seal(repetitive, ALICE, SWARM)) < len(plain) / 3


def test_logprobs_are_rounded_to_half_precision_and_kept_in_range() -> None:
    sampled = Tokens((1, 2, 3, 4), (-0.1, 1e-9, -1e9, float("-inf")), (0, 0, 0, 0))
    read = tokens_from_wire(tokens_to_wire(sampled))
    assert read.logprobs == (-0.0999755859375, 0.0, -65504.0, -65504.0)


def of(text: str = "six", reward: float = 1.0, tokens: Tokens | None = None) -> Batch:
    return batch(group(0, completion(text, reward, tokens), completion()))


REJECTED = {
    "no token": (of(tokens=Tokens((), (), ())), BadSchema),
    "token lengths": (of(tokens=Tokens((1,), (), (0,))), BadSchema),
    "id over 32 bits": (of(tokens=Tokens((1 << 32,), (-1.0,), (0,))), BadSchema),
    "negative id": (of(tokens=Tokens((-1,), (-1.0,), (0,))), BadSchema),
    "negative version": (of(tokens=Tokens((1,), (-1.0,), (-1,))), BadSchema),
    "NaN": (of(tokens=Tokens((1,), (float("nan"),), (0,))), BadSchema),
    "no group": (replace(batch(), groups=()), BadSchema),
    "one completion": (batch(group(0, completion())), BadSchema),
    "one task twice": (batch(group(0), group(0)), BadSchema),
    "terminal escape": (batch(model="tiny\x1b[31m"), BadSchema),
    "not ASCII": (batch(model="Müller's"), BadSchema),
    "digest length": (batch(encoding=b"short"), BadSchema),
    "greedy": (batch(temperature=0.0), BadSchema),
    "negative sequence": (batch(sequence=-1), BadSchema),
    "step over 63 bits": (batch(policy_step=1 << 63), BadSchema),
    "no length": (batch(max_new_tokens=0), BadSchema),
    "infinite reward": (of(reward=float("inf")), (BadSchema, BadEncoding)),
    "not Unicode": (of("\ud800"), BadEncoding),
}


@pytest.mark.parametrize(("wrong", "error"), REJECTED.values(), ids=REJECTED)
def test_seal_rejects_invalid_batch(wrong, error):
    with pytest.raises(error):
        seal(wrong, ALICE, SWARM)


def test_seal_enforces_hard_limit_and_check_batch_the_manifest() -> None:
    shared = batch(group(0, completion("x" * (1 << 20)), completion()))
    with pytest.raises(TooLarge, match="fewer groups"):
        seal(shared, ALICE, SWARM, compress=False)
    check_batch(batch(), MANIFEST)
    with pytest.raises(BadSchema, match="lcm"):
        check_batch(batch(group(env="lcm")), MANIFEST)


def refused(frame: bytes, error: type[ProtocolError], match=None, manifest=MANIFEST) -> None:
    with pytest.raises(ProtocolError, match=match) as caught:
        open_frame(frame, SWARM, manifest)
    assert type(caught.value) is error, caught.value


@given(st.binary(max_size=200))
def test_arbitrary_plain_and_zstd_bodies_are_refused(data):
    for frame in (framed_plain(data), packed_body(bytes.fromhex("28b52ffd") + data, 100)):
        with pytest.raises(ProtocolError):
            open_frame(frame, SWARM, MANIFEST)


@given(st.data())
def test_corrupt_signed_body_is_refused_or_canonical(data) -> None:
    corrupt = bytearray(PLAIN)
    for _ in range(data.draw(st.integers(1, 3))):
        corrupt[data.draw(st.integers(0, len(corrupt) - 1))] = data.draw(st.integers(0, 255))
    try:
        opened = open_frame(framed_plain(bytes(corrupt)), SWARM, MANIFEST)
    except ProtocolError:
        return
    assert encode_batch(opened.batch) == bytes(corrupt)


def test_signature_is_checked_before_decompression(monkeypatch) -> None:
    monkeypatch.setattr("protocol.frame.decompress_body", None)
    refused(FRAME[:-1] + b"\1", errors.BadSignature)


Place = Callable[[dict], dict]
PLACES: list[tuple[Place, list[str]]] = [
    (lambda wire: wire, list(plain_wire())),
    (lambda wire: wire["groups"][0], ["env", "level", "epoch", "index", "completions"]),
    (completion_of, ["segments", "reward", "finish"]),
    (segment_of, ["writer", "text", "tokens"]),
    (tokens_of, ["ids", "logprobs", "versions"]),
]
FIELDS = [(place, name) for place, names in PLACES for name in names]


@pytest.mark.parametrize(("place", "name"), FIELDS, ids=[name for _, name in FIELDS])
def test_missing_extra_invalid_or_reordered_field_is_refused(place: Place, name: str) -> None:
    assert open_frame(framed(plain_wire()), SWARM, MANIFEST).batch == batch()
    for invalid in ([], {}, [[]], True, -1, 1 << 63, "", b"", 1e300, [None], {"a": 1}):
        wire = plain_wire()
        if place(wire)[name] == invalid or (name, invalid) in ALLOWED:
            continue
        place(wire)[name] = invalid
        with pytest.raises(ProtocolError):
            open_frame(framed(wire), SWARM, MANIFEST)
    missing, additional, reordered = plain_wire(), plain_wire(), plain_wire()
    del place(missing)[name]
    refused(framed(missing), errors.BadSchema)
    place(additional)["more"] = 1
    refused(framed(additional), errors.BadSchema)
    place(reordered)[name] = place(reordered).pop(name)
    if list(place(reordered)) != list(place(plain_wire())):
        refused(framed(reordered), errors.BadSchema)


ALLOWED = [("text", ""), ("reward", 1e300)]


def test_limits_count_all_segments_and_versions_match_tokens() -> None:
    wire = plain_wire()
    tokens_of(wire).update(ids=bytes(4 * 257), logprobs=bytes(2 * 257), versions=[0, 257])
    refused(framed(wire), errors.TooLarge, "257 tokens")
    wire = plain_wire(batch(group(0, completion("x" * 129), completion())))
    completion_of(wire)["segments"] *= 2
    refused(framed(wire), errors.TooLarge, "258 bytes")
    assert peak_of(in_tokens(versions=[7, 1 << 60]), errors.BadSchema) < 4 << 20


def peak_of(frame: bytes, error: type[ProtocolError], manifest=MANIFEST) -> int:
    tracemalloc.start()
    refused(frame, error, manifest=manifest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_zstd_body_with_a_false_header_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(b"ab" * 100))
    assert packed[5] == 200, "the sixth byte holds the content size"
    packed[5] = 100
    refused(packed_body(packed, 100), errors.BadCompression)


def test_large_zstd_window_and_missing_body_header_are_refused() -> None:
    """The window descriptor 0x70 asks for 16 MiB to unpack four bytes."""
    head = bytes.fromhex("28b52ffd80") + b"\x70" + struct.pack("<I", 4)
    raw_block = bytes.fromhex("210000") + b"1234"
    refused(packed_body(head + raw_block, 4), errors.BadCompression, "window")
    head = head.replace(b"\x70", b"\x68")
    refused(packed_body(head + raw_block, 4), errors.TrailingBytes)
    refused(framed_body(b"\0\0\0"), errors.Truncated, "body of 3 bytes.* 5$")


@pytest.mark.parametrize(
    ("declared", "error"), [(100 << 20, errors.TooLarge), (1000, errors.BadCompression)]
)
def test_zstd_bomb_is_refused_within_bounded_memory(declared, error) -> None:
    bomb = zipped(bytes(100 << 20), declared)
    assert len(bomb) < MANIFEST.max_frame_bytes
    assert peak_of(bomb, error) < 1 << 20


def test_empty_list_body_uses_bounded_memory() -> None:
    widest = replace(MANIFEST, max_frame_bytes=MAX_FRAME_BYTES)
    row = b"\xdd" + struct.pack(">I", 1 << 16) + b"\x90" * (1 << 16)
    plain = b"\xdc\x00\x3f" + row * 63
    assert MAX_ITEMS < 63 << 16 < len(plain) <= 4 * MAX_FRAME_BYTES
    frame = zipped(plain, len(plain))
    assert peak_of(frame, errors.TooManyItems, widest) < 24 << 20


def wordy(index: int, length: int = 40) -> Group:
    """Make completions of random words and ids, about as compressible as real ones."""
    draw = random.Random(index)
    texts = [" ".join(draw.choices(["two", "six", "is", "the"], k=length)) for _ in range(4)]
    ids = [tuple(draw.randrange(150_000) for _ in range(length)) for _ in texts]
    values = [tuple(-draw.random() for _ in range(length)) for _ in texts]
    made = [
        completion(text, 0.0, Tokens(row, value, (1,) * length))
        for text, row, value in zip(texts, ids, values, strict=True)
    ]
    return group(index, *made)


def encoded(groups: Iterable[Group]) -> list[EncodedGroup]:
    return [EncodedGroup.decoded(EncodedGroup.of(each).plain) for each in groups]


def sealed(groups: Sequence[EncodedGroup], *, compress: bool = True) -> bytes:
    of = batch(*(each.group for each in groups))
    return seal(of, ALICE, SWARM, compress=compress, encoded=groups)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("length", [1, 10, 40, 100])
def test_pack_keeps_all_groups_within_the_frame_size(compress, length) -> None:
    groups = [wordy(index, length) for index in range(30)]
    packed = pack(encoded(groups), SIZE, compress=compress)
    assert [g for frame in packed.frames for g in frame] + list(packed.oversize) == encoded(groups)
    for frame in packed.frames:
        assert len(sealed(frame, compress=compress)) <= SIZE


@given(st.lists(any_group, max_size=8, unique_by=lambda g: (g.epoch, g.index)))
def test_pack_obeys_size_for_any_groups(groups: list[Group]) -> None:
    packed = pack(encoded(groups), 2048)
    for frame in packed.frames:
        assert len(sealed(frame)) <= 2048
    assert sum(map(len, packed.frames)) + len(packed.oversize) == len(groups)


def test_compression_reduces_frames_and_pack_accepts_no_group() -> None:
    groups = encoded(map(wordy, range(30)))
    assert len(pack(groups, SIZE).frames) < len(pack(groups, SIZE, compress=False).frames)
    assert pack([], SIZE).frames == ()


def test_pack_reports_oversize_group_that_fits_without_tokens() -> None:
    large = wordy(0, 400)
    assert pack(encoded([large]), SIZE).oversize == (*encoded([large]),)
    trimmed = without_tokens(large)
    text = EncodedGroup.of(trimmed)
    assert pack([text], SIZE).frames == ((text,),)
    assert trimmed.rewards == large.rewards
    assert [c.text for c in trimmed.completions] == [c.text for c in large.completions]
    assert all(s.tokens is None for c in trimmed.completions for s in c.segments)


def test_item_count_matches_the_decoder() -> None:
    for each in (wordy(0), without_tokens(wordy(1)), group(2)):
        wire = plain_wire(batch(each))["groups"][0]
        exactly = CodecLimits(1 << 20, 9, item_count(each), 1 << 20, 1 << 20)
        assert decode(encode(wire), exactly) == wire
        with pytest.raises(ValueError, match="items"):
            decode(encode(wire), replace(exactly, items=exactly.items - 1))


def test_encoded_groups_seal_to_same_frame_under_same_limits() -> None:
    groups = [wordy(index) for index in range(20)]
    assert sealed(encoded(groups)) == seal(batch(*groups), ALICE, SWARM)
    for twice in ([0, 0], [1, 0, 1]):
        with pytest.raises(BadSchema, match="appears twice"):
            sealed(encoded(map(wordy, twice)))
    many = [EncodedGroup.of(group(index)) for index in range(MAX_GROUPS + 1)]
    with pytest.raises(TooManyItems, match="limit 1024"):
        sealed(many)
    first, *others = many[:3]
    with pytest.raises(BadSchema, match="max_new_tokens"):
        seal(replace(batch(first.group), max_new_tokens=0), ALICE, SWARM, encoded=[first, *others])
