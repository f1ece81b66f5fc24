"""The stand-ins in ``install/`` do what the packages whose names they bear would do."""

from __future__ import annotations

import itertools
from hashlib import sha256

import pycosat
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
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


def test_libp2p_exchanges_keys_on_p_256_as_cryptography_does() -> None:
    key_exchange = pytest.importorskip("libp2p.crypto.key_exchange")
    public, shared = key_exchange.create_ephemeral_key_pair("P-256")
    other = ec.generate_private_key(ec.SECP256R1())
    sent = other.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    received = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public.to_bytes())
    secret = other.exchange(ec.ECDH(), received)
    assert shared(sent) == secret.lstrip(b"\0")


def test_keys_on_p_256_survive_their_encodings() -> None:
    ecc = pytest.importorskip("libp2p.crypto.ecc")
    pair = ecc.create_new_key_pair("P-256")
    encoded = pair.public_key.to_bytes()
    assert ecc.ECCPublicKey.from_bytes(encoded, "P-256").to_bytes() == encoded
    private = load_pem_private_key(pair.private_key.to_bytes(), None)
    told = private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    assert told == encoded
    with pytest.raises(Exception, match=r"(?i)curve|invalid|point"):
        ecc.ECCPublicKey.from_bytes(b"\x04" + b"\x01" * 64, "P-256")
