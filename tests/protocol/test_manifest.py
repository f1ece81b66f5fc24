"""A manifest is signed, named by its content, sane in every field, and says who is let in."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MAX_MANIFEST_BYTES
from protocol.errors import BadSchema, NotAdmitted, ProtocolError, TooLarge, Truncated
from protocol.manifest import (
    AllowList,
    EnvSpec,
    Manifest,
    Open,
    ProofOfWork,
    canonical_json,
    check_admitted,
    check_author,
    find_nonce,
    open_manifest,
    sign_manifest,
    swarm_id,
    work,
)
from tests.protocol.cases_manifest import in_env, resigned, said
from tests.protocol.samples import ALICE, BOB, MALLORY, MANIFEST, OTHER_SWARM, SIGNED, SWARM

GCD = MANIFEST.catalogue[0]


@pytest.mark.parametrize(
    "admission", [Open(), AllowList((ALICE.author,)), ProofOfWork(20)], ids=lambda a: str(a)[:5]
)
def test_a_signed_manifest_opens_to_what_was_signed(admission) -> None:
    manifest = replace(MANIFEST, admission=admission)
    assert open_manifest(sign_manifest(manifest, ALICE)) == manifest


def test_only_the_founder_signs() -> None:
    with pytest.raises(BadSchema, match="founder"):
        sign_manifest(MANIFEST, MALLORY)


def test_the_swarm_id_changes_with_the_manifest_and_with_its_founder() -> None:
    renamed = sign_manifest(replace(MANIFEST, name="other"), ALICE)
    taken_over = resigned(lambda wire: None)
    assert len({SWARM, swarm_id(renamed), swarm_id(taken_over)}) == 3
    with pytest.raises(Truncated):
        swarm_id(SIGNED[:100])


def test_every_flipped_byte_is_refused() -> None:
    for at in range(len(SIGNED)):
        with pytest.raises(ProtocolError):
            open_manifest(SIGNED[:at] + bytes([SIGNED[at] ^ 1]) + SIGNED[at + 1 :])


def test_a_manifest_over_its_size_is_refused_before_anything_is_read() -> None:
    with pytest.raises(TooLarge):
        open_manifest(bytes(MAX_MANIFEST_BYTES + 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "x" * 65),
        ("name", "escape\x1b[2J"),
        ("created", -1.0),
        ("created", 1),
        ("catalogue", ()),
        ("catalogue", (GCD, GCD)),
        ("epoch_seconds", 0.0),
        ("epoch_seconds", float("nan")),
        ("max_frame_bytes", 100),
        ("max_frame_bytes", (1 << 20) + 1),
        ("max_groups_per_epoch", 0),
        ("max_completions", 1),
        ("max_text_bytes", 0),
        ("max_age_epochs", 0),
    ],
)
def test_a_field_out_of_range_is_named(field: str, value: object) -> None:
    with pytest.raises((BadSchema, TooLarge), match=field):
        replace(MANIFEST, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../gcd"),
        ("name", "gcd\n"),
        ("source", "shell"),
        ("version", ""),
        ("levels", ()),
        ("levels", ("{}",) * 65),
        ("template", "no place for it"),
        ("template", "{question}{question}"),
        ("extract", "regex"),
    ],
)
def test_a_field_of_a_family_out_of_range_is_named(field: str, value: object) -> None:
    with pytest.raises(BadSchema, match=field):
        replace(GCD, **{field: value})


@pytest.mark.parametrize(
    "level",
    [
        "",
        "[]",
        "3",
        '{"a": 1}',
        '{"b":1,"a":2}',
        '{"a":1,"a":2}',
        '{"a":NaN}',
        '{"a":1e400}',
        '{"a":"\\u00e9"}',
        '{"a":"\\ud800"}',
        "[" * 4000,
        '{"a":' + "9" * 4000 + "0" * 90,
    ],
)
def test_a_level_that_is_no_canonical_json_object_is_refused(level: str) -> None:
    with pytest.raises(BadSchema, match="level 0"):
        replace(GCD, levels=(level,))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcé\n", max_size=5), json_values, max_size=4))
def test_canonical_json_is_accepted_as_a_level(value: dict) -> None:
    level = canonical_json(value)
    assert json.loads(replace(GCD, levels=(level,)).levels[0]) == value


def test_missing_additional_and_reordered_fields_are_refused() -> None:
    def reorder(wire: dict) -> None:
        wire["name"] = wire.pop("name")

    for change in (lambda w: w.pop("created"), lambda w: w.update(extra=1), reorder):
        with pytest.raises(BadSchema, match="manifest"):
            open_manifest(resigned(change))


@pytest.mark.parametrize("field", ["catalogue", "epoch_seconds", "max_completions", "name"])
@pytest.mark.parametrize("value", [None, [], {}, "x", b"x", -1, [[]], [None]])
def test_a_field_of_another_type_is_a_refusal_and_never_a_crash(field: str, value: object) -> None:
    if (field, value) != ("name", "x"):
        with pytest.raises(ProtocolError):
            open_manifest(said(**{field: value}))


@pytest.mark.parametrize("field", ["name", "source", "version", "levels", "template", "extract"])
@pytest.mark.parametrize("value", [None, [], {}, b"x", 1, [[]], [None]])
def test_a_familys_field_of_another_type_is_a_refusal_too(field: str, value: object) -> None:
    with pytest.raises(ProtocolError):
        open_manifest(in_env(**{field: value}))


def test_a_family_is_found_by_name() -> None:
    assert MANIFEST.env("gcd") is GCD
    with pytest.raises(BadSchema, match="nope"):
        MANIFEST.env("nope")


def test_the_published_defaults_make_a_valid_manifest() -> None:
    spec = EnvSpec("a", "plugin", "1", ("{}",), "{question}", "answer_tag")
    manifest = Manifest(name="n", founder=ALICE.author, created=0.0, catalogue=(spec,))
    assert open_manifest(sign_manifest(manifest, ALICE)) == manifest


def test_an_open_swarm_admits_mallory_without_work() -> None:
    check_author(Open(), MALLORY.author)
    check_admitted(Open(), SWARM, MALLORY.author, 0)
    assert find_nonce(Open(), SWARM, ALICE.author) == 0


def test_an_allow_list_admits_its_authors_alone() -> None:
    rule = AllowList(tuple(sorted((ALICE.author, BOB.author))))
    check_author(rule, BOB.author)
    with pytest.raises(NotAdmitted):
        check_author(rule, MALLORY.author)
    with pytest.raises(NotAdmitted):
        check_admitted(rule, SWARM, MALLORY.author, 0)


def test_work_is_done_for_one_key_and_one_swarm_and_a_frame_needs_none() -> None:
    check_author(ProofOfWork(40), MALLORY.author)
    rule = ProofOfWork(10)
    nonce = find_nonce(rule, SWARM, ALICE.author)
    check_admitted(rule, SWARM, ALICE.author, nonce)
    assert work(SWARM, ALICE.author, nonce) >= 10
    with pytest.raises(NotAdmitted):
        check_admitted(rule, SWARM, BOB.author, nonce)
    with pytest.raises(NotAdmitted):
        check_admitted(rule, OTHER_SWARM, ALICE.author, nonce)
