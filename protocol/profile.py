"""A profile: what a peer tells people of itself, a signed record of at most 1 KiB.

Nothing follows from it. Names are not unique and nobody checks them: a peer is who its key says.
"""

from __future__ import annotations

import unicodedata
from dataclasses import asdict, dataclass
from typing import cast

from protocol import codec, envelope
from protocol.codec import MAX_RECORD_BYTES, Limits, decode, encode
from protocol.errors import BadSchema, TooLarge
from protocol.identity import Identity

MAX_NAME = 48
MAX_LINE = 160
MAX_MODEL = 64
MAX_VERSION = 32

CHARACTER_BYTES = 3
"""Of UTF-8, a character of a text at the mean: as many as any of the basic plane takes, so that
every profile fits into its record."""

MAX_MARKS = 4
"""Marks in a row that stand above or below a letter, as in UTS 39, section 5.4; no script needs
more, and a pile of them covers the lines around it."""

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
"""What Unicode calls a letter, a mark or a symbol, and what shows nothing all the same."""

_FIELDS = ("name", "line", "model", "version", "made")
_LIMITS = Limits(MAX_RECORD_BYTES, depth=1, items=11, str_len=CHARACTER_BYTES * MAX_LINE, bin_len=0)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a peer says of itself. Construction checks every field; name or line is there.

    Attributes:
        name: what it wants to be called, up to 48 characters (:func:`check_told`).
        line: anything more, up to 160.
        model: what it trains, printable ASCII, up to 64; empty where it trains nothing.
        version: of its program, printable ASCII, up to 32; may be empty.
        made: unix time, seconds.
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
    """A text of at most ``most`` characters that shows what it is, and nothing beside itself.

    In Unicode's normal form C; of its characters none is a control, a format such as an override of
    the direction of writing, a separator of lines, unassigned, or a blank other than single spaces
    between others; it begins with no mark that would stand on what is before it.

    Raises:
        TooLarge: it is too long.
        BadSchema: it is anything else.
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
    """The profile in a signed envelope of at most 1 KiB."""
    return envelope.close(envelope.PROFILE, swarm_id, identity, encode(asdict(profile)))


def open_profile(data: bytes, swarm_id: bytes) -> tuple[bytes, Profile]:
    """Author and profile of a signed envelope, all checked.

    Raises:
        ProtocolError: in the order size, magic, swarm, key, signature, encoding, schema.
    """
    author, body = envelope.open_envelope(envelope.PROFILE, data, swarm_id, MAX_RECORD_BYTES)
    name, line, model, version, made = codec.fields(decode(body, _LIMITS), _FIELDS, "profile")
    # Construction checks all of them, types included.
    texts = (cast(str, name), cast(str, line), cast(str, model), cast(str, version))
    return author, Profile(*texts, cast(float, made))
