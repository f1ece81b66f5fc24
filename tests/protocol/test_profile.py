"""A profile says what a peer wants to be called, in text that does nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import envelope
from protocol.codec import MAX_RECORD_BYTES
from protocol.errors import BadSchema, ProtocolError
from protocol.profile import MAX_LINE, Profile, check_shown, open_profile, sign_profile
from tests.protocol.cases_profile import PROFILE, SIGNED, VALID
from tests.protocol.samples import ALICE, MALLORY, SWARM
from tests.protocol.strategies import profiles


@given(profiles)
def test_a_profile_comes_back_as_it_was_signed(made: Profile) -> None:
    signed = sign_profile(made, ALICE, SWARM)
    assert len(signed) <= MAX_RECORD_BYTES
    assert open_profile(signed, SWARM) == (ALICE.author, made)


def test_the_largest_profile_fits_into_a_record() -> None:
    assert 900 < len(VALID["the longest"]) <= MAX_RECORD_BYTES


def test_every_flipped_byte_is_refused() -> None:
    for at in range(len(SIGNED)):
        with pytest.raises(ProtocolError):
            open_profile(SIGNED[:at] + bytes([SIGNED[at] ^ 1]) + SIGNED[at + 1 :], SWARM)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_by_name(data: bytes) -> None:
    for value in (data, envelope.close(envelope.PROFILE, SWARM, MALLORY, data)):
        with pytest.raises(ProtocolError):
            open_profile(value, SWARM)


@given(st.text(max_size=40))
def test_what_is_told_does_nothing_on_a_screen_or_is_refused(text: str) -> None:
    try:
        check_shown(text, "line", MAX_LINE)
    except ProtocolError:
        return
    assert text.isprintable() and text == unicodedata.normalize("NFC", text)
    assert text == " ".join(text.split())
    assert not any(0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069 for c in text)


@pytest.mark.parametrize("bidi", "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067")
def test_no_character_that_turns_writing_around_is_told(bidi: str) -> None:
    with pytest.raises(BadSchema, match=f"U\\+{ord(bidi):04X}"):
        check_shown(f"an{bidi}na", "name", 48)


def test_a_refusal_names_the_character_and_does_not_repeat_it() -> None:
    with pytest.raises(BadSchema) as caught:
        check_shown("anna\x1b[2J", "name", 48)
    assert "U+001B" in str(caught.value) and str(caught.value).isprintable()


def test_a_profile_that_breaks_a_rule_is_not_signed_either() -> None:
    with pytest.raises(ProtocolError):
        Profile("", "", PROFILE.model, PROFILE.version, PROFILE.made)
    with pytest.raises(ProtocolError):
        Profile("an\nna", "", PROFILE.model, PROFILE.version, PROFILE.made)
