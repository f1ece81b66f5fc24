"""An identity: one key, two names, one file, and signatures for its messages only."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import BadKey, BadSignature
from protocol.identity import Identity, KeyFileError, author_of, check_key, peer_id_of, verify
from tests.protocol.cases_keys import DOMAIN, LIBP2P_KEY
from tests.protocol.samples import ALICE, BOB

P = 2**255 - 19


def test_peer_id_and_author_share_a_key_that_repr_hides() -> None:
    identity = Identity.generate()
    assert identity.peer_id.startswith("12D3Koo")
    assert author_of(identity.peer_id) == identity.author
    assert peer_id_of(identity.author) == identity.peer_id
    assert identity.export()[4:36].hex() not in repr(identity)
    assert "_key" not in repr(identity)


@example("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
@given(st.text(max_size=60))
def test_invalid_peer_id_is_refused(text):
    with pytest.raises(BadKey, match="12D3Koo" if text.startswith("Qm") else None):
        author_of(text)


@given(st.binary(max_size=80))
def test_signature_binds_message_author_and_domain(message: bytes) -> None:
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


@pytest.mark.parametrize("y", range(P, 2**255))
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_non_canonical_keys_are_refused(y: int, sign: int) -> None:
    with pytest.raises(BadKey, match="canonical"):
        check_key((y | sign).to_bytes(32, "little"))


def test_off_curve_and_mismatched_keys_are_refused() -> None:
    for number in range(50):
        check_key(Identity.from_seed(bytes([number]) * 32).author)
    with pytest.raises(BadKey, match="curve"):
        check_key((2).to_bytes(32, "little"))
    with pytest.raises(BadKey, match="seed"):
        Identity.from_bytes(LIBP2P_KEY[:36] + BOB.author)


@pytest.mark.parametrize("more", [-1, 1])
def test_keys_and_signatures_with_wrong_length_are_refused(more: int) -> None:
    for length in (0, 32 + more):
        with pytest.raises(BadKey):
            check_key(bytes(length))
    for length in (0, 64 + more):
        with pytest.raises(BadSignature):
            verify(ALICE.author, DOMAIN, b"", bytes(length))


def test_malleable_signature_is_refused() -> None:
    """Otherwise anyone could make a second valid signature and a second content id."""
    order = 2**252 + 27742317777372353535851937790883648493
    signature = ALICE.sign(DOMAIN, b"message")
    s = int.from_bytes(signature[32:], "little") + order
    with pytest.raises(BadSignature):
        verify(ALICE.author, DOMAIN, b"message", signature[:32] + s.to_bytes(32, "little"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "identity.key"


def test_a_created_key_file_is_private_and_never_overwritten(path: Path) -> None:
    with pytest.raises(KeyFileError, match="no key file"):
        Identity.load(path)
    made = Identity.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).author == made.author
    with pytest.raises(KeyFileError, match="exists"):
        Identity.create(path)
    assert Identity.load(path).author == made.author


@pytest.mark.skipif(os.name != "posix", reason="file modes need POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_key_file_accessible_to_others_is_refused_with_a_fix(path: Path, mode: int) -> None:
    Identity.create(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Identity.load(path)


@pytest.mark.parametrize(
    "data", [b"", LIBP2P_KEY[:-1], LIBP2P_KEY + b"\0", b"\x08\x00" + LIBP2P_KEY[2:]]
)
def test_invalid_key_file_is_refused_with_a_fix(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="new identity"):
        Identity.load(path)
