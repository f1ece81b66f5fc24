"""Base58 with the Bitcoin alphabet, as libp2p writes PeerIDs."""

from __future__ import annotations

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUE = {letter: value for value, letter in enumerate(_ALPHABET)}


def encode(data: bytes) -> str:
    """Each leading zero byte becomes a "1", the rest one big number."""
    number = int.from_bytes(data, "big")
    letters = ""
    while number:
        number, digit = divmod(number, 58)
        letters = _ALPHABET[digit] + letters
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + letters


def decode(text: str) -> bytes | None:
    """The bytes that :func:`encode` turns into ``text``; None for a letter not in the alphabet."""
    number = 0
    for letter in text:
        value = _VALUE.get(letter)
        if value is None:
            return None
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
