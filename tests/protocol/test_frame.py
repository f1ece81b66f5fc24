"""What is sealed opens unchanged, and small enough to share."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given

from protocol.errors import BadEncoding, BadSchema, NotAdmitted, TooLarge
from protocol.frame import check_batch, content_id, open_frame, seal
from protocol.manifest import AllowList
from protocol.rollout import Batch, Tokens, tokens_from_wire, tokens_to_wire
from tests.protocol.samples import (
    ALICE,
    MALLORY,
    MANIFEST,
    SWARM,
    batch,
    completion,
    dialogue,
    group,
)
from tests.protocol.strategies import batches

ROOMY = replace(MANIFEST, max_frame_bytes=1 << 20)


@given(batches)
def test_a_batch_comes_back_as_it_was_sealed(shared: Batch) -> None:
    for compress in (False, True):
        opened = open_frame(seal(shared, ALICE, SWARM, compress=compress), SWARM, ROOMY)
        assert opened.batch == shared
        assert opened.author == ALICE.author


def test_a_dialogue_keeps_its_segments() -> None:
    shared = batch(group(0, dialogue(), completion()))
    opened = open_frame(seal(shared, ALICE, SWARM), SWARM, MANIFEST)
    assert opened.batch.groups[0].completions[0] == dialogue()
    assert opened.batch.groups[0].completions[0].text == "leftright"


def test_a_frame_is_named_by_the_hash_of_all_its_bytes() -> None:
    frame = seal(batch(), ALICE, SWARM)
    assert open_frame(frame, SWARM, MANIFEST).content_id == content_id(frame)
    assert content_id(frame) == sha256(frame).digest()


def test_repetitive_groups_travel_compressed() -> None:
    shared = batch(*(group(index) for index in range(16)))
    plain = seal(shared, ALICE, SWARM, compress=False)
    squeezed = seal(shared, ALICE, SWARM)
    assert len(squeezed) < len(plain) / 3


def test_an_author_off_the_allow_list_is_refused() -> None:
    closed = replace(MANIFEST, admission=AllowList((ALICE.author,)))
    open_frame(seal(batch(), ALICE, SWARM), SWARM, closed)
    with pytest.raises(NotAdmitted):
        open_frame(seal(batch(), MALLORY, SWARM), SWARM, closed)


def test_logprobs_are_rounded_to_half_precision_and_kept_in_range() -> None:
    sampled = Tokens((1, 2, 3, 4), (-0.1, 1e-9, -1e9, float("-inf")), (0, 0, 0, 0))
    read = tokens_from_wire(tokens_to_wire(sampled))
    assert read.logprobs == (-0.0999755859375, 0.0, -65504.0, -65504.0)


@pytest.mark.parametrize(
    "tokens",
    [
        Tokens((), (), ()),
        Tokens((1,), (), (0,)),
        Tokens((1 << 32,), (-1.0,), (0,)),
        Tokens((-1,), (-1.0,), (0,)),
        Tokens((1,), (-1.0,), (-1,)),
        Tokens((1,), (float("nan"),), (0,)),
    ],
    ids=["none", "lengths", "id over 32 bits", "negative id", "negative version", "NaN"],
)
def test_tokens_that_no_reader_would_take_are_not_sealed(tokens: Tokens) -> None:
    with pytest.raises(BadSchema):
        seal(batch(group(0, completion(tokens=tokens), completion())), ALICE, SWARM)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(batch(), groups=()),
        batch(group(0, completion())),
        batch(group(0), group(0)),
        replace(batch(), model="tiny\x1b[31m"),
        replace(batch(), model="Müller's"),
        replace(batch(), encoding=b"short"),
        replace(batch(), temperature=0.0),
        replace(batch(), sequence=-1),
        replace(batch(), policy_step=1 << 63),
        replace(batch(), max_new_tokens=0),
        batch(group(0, completion(reward=float("inf")), completion())),
    ],
    ids=[
        "no group",
        "one completion",
        "one task twice",
        "terminal escape",
        "not ASCII",
        "digest length",
        "greedy",
        "negative sequence",
        "step over 63 bits",
        "no length",
        "infinite reward",
    ],
)
def test_a_batch_that_no_reader_would_take_is_not_sealed(wrong: Batch) -> None:
    with pytest.raises((BadSchema, BadEncoding)):
        seal(wrong, ALICE, SWARM)


def test_text_that_is_not_unicode_is_not_sealed() -> None:
    with pytest.raises(BadEncoding):
        seal(batch(group(0, completion("\ud800"), completion())), ALICE, SWARM)


def test_a_frame_over_the_hard_limit_is_not_sealed() -> None:
    shared = batch(group(0, completion("x" * (1 << 20)), completion()))
    with pytest.raises(TooLarge, match="fewer groups"):
        seal(shared, ALICE, SWARM, compress=False)


def test_a_sender_can_ask_whether_the_manifest_allows_its_batch() -> None:
    check_batch(batch(), MANIFEST)
    with pytest.raises(BadSchema, match="lcm"):
        check_batch(batch(group(env="lcm")), MANIFEST)
