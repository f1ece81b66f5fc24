"""The stand-ins in ``install/`` behave like the packages that they replace."""

import itertools
import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec

import pycosat
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from fastecdsa import keys
from fastecdsa.curve import P256
from fastecdsa.encoding.sec1 import InvalidSEC1PublicKey, SEC1Encoder
from fastecdsa.encoding.util import int_bytelen
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.factory import create_dataset

VARIABLES = 5
LITERALS = st.integers(-VARIABLES, VARIABLES).filter(bool)
CLAUSES = st.lists(st.lists(LITERALS, min_size=1, max_size=3), min_size=1, max_size=12)
ZEBRAS = "42603717b7"
"""Digest of reasoning-gym's output with the real pycosat 0.6.6."""


@given(CLAUSES)
def test_itersolve_yields_every_model_once(clauses: list[list[int]]) -> None:
    used = max(abs(literal) for clause in clauses for literal in clause)
    models = [
        [variable if value else -variable for variable, value in enumerate(values, start=1)]
        for values in itertools.product([False, True], repeat=used)
    ]
    expected = [m for m in models if all(set(clause) & set(m) for clause in clauses)]
    assert sorted(pycosat.itersolve(clauses)) == sorted(expected)


def test_logic_puzzles_match_those_of_pycosat() -> None:
    made = create_dataset("zebra_puzzles", size=6, seed=11, num_people=3, num_characteristics=3)
    text = "".join(f"{made[i]['question']}{made[i]['answer']}" for i in range(6))
    assert sha256(text.encode()).hexdigest()[:10] == ZEBRAS


def test_point_multiplication_gives_ecdh_shared_secret() -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    sent = other.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    private = keys.gen_private_key(P256)
    public = SEC1Encoder.encode_public_key(keys.get_public_key(private, P256), compressed=False)
    received = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    secret = (SEC1Encoder.decode_public_key(sent, P256) * private).x
    assert secret == int.from_bytes(other.exchange(ec.ECDH(), received), "big")
    assert int_bytelen(secret) == (secret.bit_length() + 7) // 8


@pytest.mark.parametrize("compressed", [True, False])
def test_p_256_key_encodings_round_trip(compressed: bool) -> None:
    private = keys.gen_private_key(P256)
    point = keys.get_public_key(private, P256)
    encoded = SEC1Encoder.encode_public_key(point, compressed=compressed)
    assert SEC1Encoder.decode_public_key(encoded, P256) == point
    pem = keys.export_key(private, P256, encoder=keys.PEMEncoder)
    loaded = load_pem_private_key(pem.encode(), None)
    assert loaded.private_numbers().private_value == private
    with pytest.raises(InvalidSEC1PublicKey):
        SEC1Encoder.decode_public_key(b"\x04" + b"\x01" * 64, P256)


def test_stand_in_covers_libp2p_use_of_fastecdsa() -> None:
    if find_spec("libp2p") is None:
        pytest.skip("libp2p is not installed: pip install '.[libp2p]'")
    code = """
from libp2p.crypto.ecc import ECCPublicKey, create_new_key_pair
from libp2p.crypto.key_exchange import create_ephemeral_key_pair
pair = create_new_key_pair("P-256")
encoded = pair.public_key.to_bytes()
assert ECCPublicKey.from_bytes(encoded, "P-256").to_bytes() == encoded
assert pair.private_key.to_bytes().startswith(b"-----BEGIN EC PRIVATE KEY-----")
(one, secret), (other, same) = (create_ephemeral_key_pair("P-256") for _ in range(2))
assert secret(other.to_bytes()) == same(one.to_bytes())
"""
    # Use a separate process, because libp2p and hivemind cannot share one.
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
