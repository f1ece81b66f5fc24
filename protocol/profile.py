"""Profiles: signed records of at most 1 KiB that describe a peer to people.

The software decides nothing by them. Names are neither unique nor verified; a peer is identified
by its key.
"""

from __future__ import annotations

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

CHARACTER_BYTES = 3
"""Maximum mean UTF-8 bytes per character: the basic plane's maximum. Profiles then fit a record."""

MAX_MARKS = 4
"""Maximum consecutive combining marks (UTS 39, section 5.4). No script needs more, and more of them
cover the lines around them."""

_BLANK_LETTERS = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)
"""Characters that Unicode calls letters, marks or symbols but that display nothing."""

_FIELDS = ("name", "line", "model", "version", "made")
_LIMITS = CodecLimits(
    MAX_RECORD_BYTES, depth=1, items=11, str_len=CHARACTER_BYTES * MAX_LINE, bin_len=0
)


@dataclass(frozen=True, slots=True)
class Profile:
    """A peer's description of itself; construction checks every field.

    Name or line must not be empty.

    Attributes:
        name: display name, up to 48 characters (:func:`check_told`).
        line: free text, up to 160 characters.
        model: the model it trains, printable ASCII, up to 64; empty if it trains nothing.
        version: of its program, printable ASCII, up to 32; may be empty.
        made: Unix time, seconds.
    """

    name: str
    line: str
    model: str
    version: str
    made: float

    def __post_init__(self) -> None:
        check_told(self.name, "name", MAX_NAME)
        check_told(self.line, "line", MAX_LINE)
        for text, where, most in (
            (self.model, "model", MAX_MODEL),
            (self.version, "version", MAX_VERSION),
        ):
            if text != "":
                codec.label(text, where, most)
        codec.real(self.made, "made", 0.0, 2.0**40)
        if not (self.name or self.line):
            raise BadSchema("profile: name and line are both empty, so that there is none")


def check_told(value: object, where: str, most: int) -> str:
    """Check a text of at most ``most`` characters that must display only itself.

    It must be in Unicode's normal form C. It must not contain control characters, format characters
    such as direction overrides, line separators or unassigned characters. The only blanks allowed
    are single spaces between other characters. It must not start with a combining mark.

    Raises:
        TooLarge: the text is too long.
        BadSchema: it breaks another rule.
    """
    text = codec.text(value, where, CHARACTER_BYTES * most)
    if len(text) > most:
        raise TooLarge(f"{where}: {len(text)} characters, limit {most}")
    if not unicodedata.is_normalized("NFC", text):
        raise BadSchema(f"{where}: not in Unicode's normal form C")
    if text != text.strip(" ") or "  " in text:
        raise BadSchema(f"{where}: blanks at its ends, or two in a row")
    for character in text:
        if not character.isprintable() or character in _BLANK_LETTERS:
            raise BadSchema(f"{where}: U+{ord(character):04X} shows nothing")
    _check_marks(text, where)
    return text


def _check_marks(text: str, where: str) -> None:
    if text and unicodedata.category(text[0]).startswith("M"):
        raise BadSchema(f"{where}: begins with the mark U+{ord(text[0]):04X}, on no letter")
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks > MAX_MARKS:
            raise BadSchema(f"{where}: more than {MAX_MARKS} marks on one letter")


def sign_profile(profile: Profile, identity: Identity, swarm_id: bytes) -> bytes:
    """Sign the profile into an envelope of at most 1 KiB."""
    return envelope.close(envelope.PROFILE, swarm_id, identity, encode(asdict(profile)))


def open_profile(data: bytes, swarm_id: bytes) -> tuple[bytes, Profile]:
    """Return author and profile of a signed envelope, fully checked.

    Raises:
        ProtocolError: in the order size, magic, swarm, key, signature, encoding, schema.
    """
    author, body = envelope.open_envelope(envelope.PROFILE, data, swarm_id, MAX_RECORD_BYTES)
    name, line, model, version, made = codec.fields(decode(body, _LIMITS), _FIELDS, "profile")
    # Construction checks them all, including their types.
    texts = (cast(str, name), cast(str, line), cast(str, model), cast(str, version))
    return author, Profile(*texts, cast(float, made))
