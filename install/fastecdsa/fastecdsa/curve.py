"""The one curve that libp2p asks for."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, slots=True)
class Curve:
    """A named curve and the order ``q`` of its base point (SEC 2)."""

    name: str
    q: int
    parameters: ec.EllipticCurve


P256 = Curve(
    "P256",
    0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    ec.SECP256R1(),
)
