"""Public keys as points."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from fastecdsa.curve import P256, Curve


@dataclass(frozen=True, slots=True)
class SharedPoint:
    """The product of a point and a private key, of which ECDH uses ``x`` alone (SEC 1, 3.3.1)."""

    x: int


@dataclass(frozen=True, slots=True)
class Point:
    """A point on a curve.

    Raises:
        ValueError: The coordinates are not on the curve.
    """

    x: int
    y: int
    curve: Curve = P256

    def __post_init__(self) -> None:
        self.public_key()

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """Return the point as ``cryptography`` has it."""
        return ec.EllipticCurvePublicNumbers(self.x, self.y, self.curve.parameters).public_key()

    def __mul__(self, scalar: int) -> SharedPoint:
        """Multiply by a private key, as in ECDH."""
        private = ec.derive_private_key(scalar, self.curve.parameters)
        return SharedPoint(int.from_bytes(private.exchange(ec.ECDH(), self.public_key()), "big"))
