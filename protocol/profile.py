"""Profiles: signed records of at most 1 KiB that describe a peer to people.

The software decides nothing by them. Names are not unique; a peer is identified by its key.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import asdict, dataclass
from typing import cast

from protocol import codec, envelope
from protocol.codec import MAX_RECORD_BYTES, CodecLimits, decode, encode
from protocol.errors import BadSchema, TooLarge
from protocol.identity import Identity

MAX_NAME = 48
MAX_LINE = 160
MAX_MODEL = 64
MAX_VERSION = 32

CHARACTER_BYTES = 3  # maximum mean UTF-8 bytes per character, so that profiles fit a record
MAX_MARKS = 4  # maximum consecutive combining marks (UTS 39, 5.4); more cover the lines around
# Default_Ignorable_Code_Point of Unicode 16 (DerivedCoreProperties.txt), then other code points
# that display nothing: null notehead, Braille and hieroglyphic blanks, fillers, placeholders.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
    "\u2800\ufff9-\ufffc\U00013441\U00013442\U00016fe4\U0001bc9d\U0001d159]"
)

_FIELDS = ("name", "line", "model", "version", "made")
_LIMITS = CodecLimits(
    MAX_RECORD_BYTES, depth=1, items=11, str_len=CHARACTER_BYTES * MAX_LINE, bin_len=0
)


@dataclass(frozen=True, slots=True)
class Profile:
    """A peer's description of itself; every field is checked, name or line not empty."""

    name: str  # display name, up to 48 characters (:func:`check_shown`)
    line: str  # free text, up to 160 characters
    model: str  # the model it trains, printable ASCII, up to 64; empty if it trains nothing
    version: str  # of its program, printable ASCII, up to 32; may be empty
    made: float  # Unix time, seconds

    def __post_init__(self) -> None:
        check_shown(self.name, "name", MAX_NAME)
        check_shown(self.line, "line", MAX_LINE)
        if self.model != "":
            codec.label(self.model, "model", MAX_MODEL)
        if self.version != "":
            codec.label(self.version, "version", MAX_VERSION)
        codec.real(self.made, "made", 0.0, 2.0**40)
        if not (self.name or self.line):
            raise BadSchema("profile: name and line are both empty, so that there is none")


def check_shown(value: object, where: str, most: int) -> str:
    """Return a text that displays only itself; raise ``TooLarge`` or ``BadSchema``.

    It is in Unicode's normal form C and does not start with a combining mark. Control, format and
    unassigned characters are refused, and blanks other than single spaces between characters.
    """
    text = codec.text(value, where, CHARACTER_BYTES * most)
    if len(text) > most:
        raise TooLarge(f"{where}: {len(text)} characters, limit {most}")
    if not unicodedata.is_normalized("NFC", text):
        raise BadSchema(f"{where}: not in Unicode's normal form C")
    if text != text.strip(" ") or "  " in text:
        raise BadSchema(f"{where}: blanks at its ends, or two in a row")
    for character in text:
        if not character.isprintable() or INVISIBLE.match(character):
            raise BadSchema(f"{where}: U+{ord(character):04X} shows nothing")
    _check_marks(text, where)
    return text


def _check_marks(text: str, context: str) -> None:
    if text and unicodedata.category(text[0]).startswith("M"):
        raise BadSchema(f"{context}: begins with the mark U+{ord(text[0]):04X}, on no letter")
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks > MAX_MARKS:
            raise BadSchema(f"{context}: more than {MAX_MARKS} marks on one letter")


def sign_profile(profile: Profile, identity: Identity, swarm_id: bytes) -> bytes:
    """Sign the profile into an envelope of at most 1 KiB."""
    return envelope.close(envelope.PROFILE, swarm_id, identity, encode(asdict(profile)))


def open_profile(data: bytes, swarm_id: bytes) -> tuple[bytes, Profile]:
    """Return author and profile of a signed envelope, fully checked."""
    author, body = envelope.open_envelope(envelope.PROFILE, data, swarm_id, MAX_RECORD_BYTES)
    name, line, model, version, created = codec.fields(decode(body, _LIMITS), _FIELDS, "profile")
    # Construction checks them all, including their types.
    texts = (cast(str, name), cast(str, line), cast(str, model), cast(str, version))
    return author, Profile(*texts, cast(float, created))
