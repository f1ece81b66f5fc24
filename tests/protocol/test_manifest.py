"""A manifest is signed, named by its content, valid, and defines who is admitted."""

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
ALICE_ALONE = AllowList((ALICE.author,))

CASES = {
    **{str(a)[:5]: replace(MANIFEST, admission=a) for a in (Open(), ALICE_ALONE, ProofOfWork(20))},
    "published defaults": Manifest(
        name="n",
        founder=ALICE.author,
        created=0.0,
        catalogue=(EnvSpec("a", "plugin", "1", ("{}",), "{question}", "answer_tag"),),
    ),
}


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_manifest_signed_by_its_creator_round_trips(made):
    assert open_manifest(sign_manifest(made, ALICE)) == made
    with pytest.raises(BadSchema, match="founder"):
        sign_manifest(made, MALLORY)


def test_swarm_id_covers_manifest_and_creator_and_env_finds_names() -> None:
    renamed = sign_manifest(replace(MANIFEST, name="other"), ALICE)
    taken_over = resigned(lambda wire: None)
    assert len({SWARM, swarm_id(renamed), swarm_id(taken_over)}) == 3
    with pytest.raises(Truncated):
        swarm_id(SIGNED[:100])
    with pytest.raises(TooLarge):
        open_manifest(bytes(MAX_MANIFEST_BYTES + 1))
    assert MANIFEST.env("gcd") is GCD
    with pytest.raises(BadSchema, match="nope"):
        MANIFEST.env("nope")


OUT_OF_RANGE = {
    MANIFEST: {
        "name": ("", "x" * 65, "escape\x1b[2J"),
        "created": (-1.0, 1),
        "catalogue": ((), (GCD, GCD)),
        "epoch_seconds": (0.0, float("nan")),
        "max_frame_bytes": (100, (1 << 20) + 1),
        "max_groups_per_epoch": (0,),
        "max_completions": (1,),
        "max_text_bytes": (0,),
        "max_age_epochs": (0,),
    },
    GCD: {
        "name": ("../gcd", "gcd\n"),
        "source": ("shell",),
        "version": ("",),
        "levels": ((), ("{}",) * 65),
        "template": ("no place for it", "{question}{question}"),
        "extract": ("regex",),
    },
}


@pytest.mark.parametrize("of", OUT_OF_RANGE, ids=["manifest", "family"])
def test_error_names_invalid_field(of):
    for field, values in OUT_OF_RANGE[of].items():
        for value in values:
            with pytest.raises((BadSchema, TooLarge) if of is MANIFEST else BadSchema, match=field):
                replace(of, **{field: value})


@pytest.mark.parametrize(
    "level",
    ["", "3", '{"a":1e400}', '{"a":"\\ud800"}', "[" * 4000, '{"a":' + "9" * 4000 + "0" * 90],
)
def test_level_must_be_a_canonical_json_object(level: str) -> None:
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
    reorder = lambda w: w.update(name=w.pop("name"))  # noqa: E731
    for change in (lambda w: w.pop("created"), lambda w: w.update(extra=1), reorder):
        with pytest.raises(BadSchema, match="manifest"):
            open_manifest(resigned(change))


FIELDS = {
    said: ["catalogue", "epoch_seconds", "max_completions", "name"],
    in_env: ["name", "source", "version", "levels", "template", "extract"],
}


@pytest.mark.parametrize(("bent", "field"), [(b, field) for b in FIELDS for field in FIELDS[b]])
@pytest.mark.parametrize("value", [None, [], {}, 1, b"x", -1, [[]], [None]])
def test_wrong_field_type_raises_protocol_error(bent, field, value):
    with pytest.raises(ProtocolError):
        open_manifest(bent(**{field: value}))
    if (bent, field) in [(said, each) for each in FIELDS[said][:3]]:
        with pytest.raises(ProtocolError):
            open_manifest(bent(**{field: "x"}))


def test_open_swarm_admits_all_and_allow_list_only_its_authors() -> None:
    check_author(Open(), MALLORY.author)
    check_admitted(Open(), SWARM, MALLORY.author, 0)
    assert find_nonce(Open(), SWARM, ALICE.author) == 0
    rule = AllowList(tuple(sorted((ALICE.author, BOB.author))))
    check_author(rule, BOB.author)
    with pytest.raises(NotAdmitted):
        check_author(rule, MALLORY.author)
    with pytest.raises(NotAdmitted):
        check_admitted(rule, SWARM, MALLORY.author, 0)


def test_proof_of_work_binds_key_and_swarm_but_frames_need_none() -> None:
    check_author(ProofOfWork(40), MALLORY.author)
    rule = ProofOfWork(10)
    nonce = find_nonce(rule, SWARM, ALICE.author)
    check_admitted(rule, SWARM, ALICE.author, nonce)
    assert work(SWARM, ALICE.author, nonce) >= 10
    with pytest.raises(NotAdmitted):
        check_admitted(rule, SWARM, BOB.author, nonce)
    with pytest.raises(NotAdmitted):
        check_admitted(rule, OTHER_SWARM, ALICE.author, nonce)
