"""One key, two names, one file; and no key that signs for messages it never saw."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadKey, BadSignature
from protocol.identity import Identity, KeyFileError, author_of, check_key, peer_id_of, verify
from tests.protocol.samples import ALICE, BOB

DOMAIN = b"swarm-node/1/test"
P = 2**255 - 19

# libp2p's own test vector: https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md.
LIBP2P_KEY = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)

SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]


def test_a_libp2p_key_file_is_read_and_written_byte_for_byte() -> None:
    identity = Identity.from_bytes(LIBP2P_KEY)
    assert identity.export() == LIBP2P_KEY
    assert identity.author == LIBP2P_KEY[36:]
    assert identity.peer_id == "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


def test_peer_id_and_author_name_the_same_key() -> None:
    identity = Identity.generate()
    assert identity.peer_id.startswith("12D3Koo")
    assert author_of(identity.peer_id) == identity.author
    assert peer_id_of(identity.author) == identity.peer_id


@given(st.text(max_size=60))
def test_text_that_is_no_peer_id_is_refused(text: str) -> None:
    with pytest.raises(BadKey):
        author_of(text)


def test_an_rsa_peer_id_is_refused() -> None:
    with pytest.raises(BadKey, match="12D3Koo"):
        author_of("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")


@given(st.binary(max_size=80))
def test_a_signature_holds_for_its_message_author_and_domain_only(message: bytes) -> None:
    signature = ALICE.sign(DOMAIN, message)
    verify(ALICE.author, DOMAIN, message, signature)
    for author, domain, text in [
        (BOB.author, DOMAIN, message),
        (ALICE.author, DOMAIN + b"2", message),
        (ALICE.author, DOMAIN[:-1], DOMAIN[-1:] + message),
        (ALICE.author, DOMAIN, message + b"\0"),
    ]:
        with pytest.raises(BadSignature):
            verify(author, domain, text, signature)


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_small_order_keys_are_refused(key: str) -> None:
    """With such a key mallory's all-zero S verifies for a good part of all messages."""
    with pytest.raises(BadKey):
        verify(bytes.fromhex(key), DOMAIN, b"", bytes.fromhex(SMALL_ORDER[0]) + bytes(32))


@pytest.mark.parametrize("y", range(P, 2**255))
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_non_canonical_keys_are_refused(y: int, sign: int) -> None:
    with pytest.raises(BadKey, match="canonical"):
        check_key((y | sign).to_bytes(32, "little"))


def test_points_off_the_curve_are_refused() -> None:
    with pytest.raises(BadKey, match="curve"):
        check_key((2).to_bytes(32, "little"))


def test_honest_keys_are_on_the_curve() -> None:
    for number in range(50):
        check_key(Identity.from_seed(bytes([number]) * 32).author)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(BadKey):
        check_key(bytes(length))


@pytest.mark.parametrize("length", [0, 63, 65])
def test_signatures_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(BadSignature):
        verify(ALICE.author, DOMAIN, b"", bytes(length))


def test_a_signature_with_s_plus_the_group_order_is_refused() -> None:
    """Else anybody could make a second valid signature, and with it a second content id."""
    order = 2**252 + 27742317777372353535851937790883648493
    signature = ALICE.sign(DOMAIN, b"message")
    s = int.from_bytes(signature[32:], "little") + order
    with pytest.raises(BadSignature):
        verify(ALICE.author, DOMAIN, b"message", signature[:32] + s.to_bytes(32, "little"))


def test_a_created_key_file_is_private_and_loads(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    made = Identity.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).author == made.author


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    made = Identity.create(path)
    with pytest.raises(KeyFileError, match="exists"):
        Identity.create(path)
    assert Identity.load(path).author == made.author


@pytest.mark.skipif(os.name != "posix", reason="file modes")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_file_open_to_others_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.key"
    Identity.create(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Identity.load(path)


@pytest.mark.parametrize(
    "data", [b"", LIBP2P_KEY[:-1], LIBP2P_KEY + b"\0", b"\x08\x00" + LIBP2P_KEY[2:]]
)
def test_a_file_that_is_no_key_is_refused_with_the_remedy(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="new identity"):
        Identity.load(path)


def test_a_key_whose_halves_differ_is_refused() -> None:
    with pytest.raises(BadKey, match="seed"):
        Identity.from_bytes(LIBP2P_KEY[:36] + BOB.author)


def test_a_missing_key_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no key file"):
        Identity.load(tmp_path / "absent")


def test_a_private_key_shows_in_no_representation() -> None:
    identity = Identity.generate()
    assert identity.export()[4:36].hex() not in repr(identity)
    assert "_key" not in repr(identity)
