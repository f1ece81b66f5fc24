"""A profile holds the name a peer chose, in text without effects on a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MAX_RECORD_BYTES
from protocol.errors import BadSchema, ProtocolError
from protocol.profile import MAX_LINE, Profile, check_shown, open_profile, sign_profile
from tests.protocol.cases_profile import PROFILE, VALID
from tests.protocol.samples import ALICE, SWARM
from tests.protocol.strategies import profiles


@given(profiles)
def test_signed_profile_round_trips_and_the_largest_fits_a_record(made):
    signed = sign_profile(made, ALICE, SWARM)
    assert len(signed) <= MAX_RECORD_BYTES
    assert open_profile(signed, SWARM) == (ALICE.author, made)
    assert 900 < len(VALID["the longest"]) <= MAX_RECORD_BYTES


@given(st.text(max_size=40))
def test_profile_text_is_harmless_on_screen_or_refused(text: str) -> None:
    try:
        check_shown(text, "line", MAX_LINE)
    except ProtocolError:
        return
    assert text.isprintable() and text == unicodedata.normalize("NFC", text)
    assert text == " ".join(text.split())
    assert not any(0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069 for c in text)


@pytest.mark.parametrize(
    "acting",
    "\U0001d159\ufffc\u2800\u3164\u115f\U000e0fff"
    "\x1b\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067",
)
def test_error_names_control_character_without_printing_it(acting):
    with pytest.raises(BadSchema, match=f"U\\+{ord(acting):04X}") as caught:
        check_shown(f"an{acting}na", "name", 48)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["", "an\nna"])
def test_invalid_profile_cannot_be_created(name):
    with pytest.raises(ProtocolError):
        Profile(name, "", PROFILE.model, PROFILE.version, PROFILE.made)
