"""Public keys as octets (SEC 1, 2.3.3 and 2.3.4)."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fastecdsa.curve import Curve
from fastecdsa.point import Point


class InvalidSEC1PublicKey(Exception):  # noqa: N818 - fastecdsa's name
    """The octets are not a point of the curve."""


class SEC1Encoder:
    """Points, compressed to one coordinate and its sign, or whole."""

    @staticmethod
    def encode_public_key(point: Point, compressed: bool = True) -> bytes:
        """Encode a point: 33 bytes compressed, 65 otherwise."""
        form = PublicFormat.CompressedPoint if compressed else PublicFormat.UncompressedPoint
        return point.public_key().public_bytes(Encoding.X962, form)

    @staticmethod
    def decode_public_key(key: bytes, curve: Curve) -> Point:
        """Decode a point of either form.

        Raises:
            InvalidSEC1PublicKey: The octets are malformed or not on the curve.
        """
        try:
            public = ec.EllipticCurvePublicKey.from_encoded_point(curve.parameters, key)
        except ValueError as error:
            raise InvalidSEC1PublicKey(str(error)) from error
        numbers = public.public_numbers()
        return Point(numbers.x, numbers.y, curve)
