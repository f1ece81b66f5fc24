"""Private keys as numbers."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec

from fastecdsa.curve import Curve
from fastecdsa.encoding.pem import PEMEncoder
from fastecdsa.point import Point

__all__ = ["PEMEncoder", "export_key", "gen_private_key", "get_public_key"]


def gen_private_key(curve: Curve) -> int:
    """Draw a private key from the system's generator."""
    return ec.generate_private_key(curve.parameters).private_numbers().private_value


def get_public_key(d: int, curve: Curve) -> Point:
    """Multiply the curve's base point by ``d``."""
    numbers = ec.derive_private_key(d, curve.parameters).public_key().public_numbers()
    return Point(numbers.x, numbers.y, curve)


def export_key(key: int, curve: Curve, encoder: type[PEMEncoder] = PEMEncoder) -> str:
    """Encode a private key as text."""
    return encoder.encode_private_key(key, curve)
