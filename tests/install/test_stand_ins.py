"""The stand-ins in ``install/`` do what the packages whose names they bear would do."""

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
"""Digest of what reasoning-gym makes with pycosat 0.6.6 itself."""


@given(CLAUSES)
def test_every_model_of_a_formula_is_found_once(clauses: list[list[int]]) -> None:
    used = max(abs(literal) for clause in clauses for literal in clause)
    models = [
        [variable if value else -variable for variable, value in enumerate(values, start=1)]
        for values in itertools.product([False, True], repeat=used)
    ]
    wanted = [m for m in models if all(set(clause) & set(m) for clause in clauses)]
    assert sorted(pycosat.itersolve(clauses)) == sorted(wanted)


def test_logic_puzzles_are_the_ones_that_pycosat_leads_to() -> None:
    made = create_dataset("zebra_puzzles", size=6, seed=11, num_people=3, num_characteristics=3)
    text = "".join(f"{made[i]['question']}{made[i]['answer']}" for i in range(6))
    assert sha256(text.encode()).hexdigest()[:10] == ZEBRAS


def test_a_point_times_a_private_key_is_the_secret_of_ecdh() -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    sent = other.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    private = keys.gen_private_key(P256)
    public = SEC1Encoder.encode_public_key(keys.get_public_key(private, P256), compressed=False)
    received = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    secret = (SEC1Encoder.decode_public_key(sent, P256) * private).x
    assert secret == int.from_bytes(other.exchange(ec.ECDH(), received), "big")
    assert int_bytelen(secret) == (secret.bit_length() + 7) // 8


@pytest.mark.parametrize("compressed", [True, False])
def test_keys_on_p_256_survive_their_encodings(compressed: bool) -> None:
    private = keys.gen_private_key(P256)
    point = keys.get_public_key(private, P256)
    encoded = SEC1Encoder.encode_public_key(point, compressed=compressed)
    assert SEC1Encoder.decode_public_key(encoded, P256) == point
    pem = keys.export_key(private, P256, encoder=keys.PEMEncoder)
    loaded = load_pem_private_key(pem.encode(), None)
    assert loaded.private_numbers().private_value == private
    with pytest.raises(InvalidSEC1PublicKey):
        SEC1Encoder.decode_public_key(b"\x04" + b"\x01" * 64, P256)


def test_libp2p_finds_all_that_it_imports_of_fastecdsa() -> None:
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
    # In a process of its own: libp2p and hivemind do not share one.
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
