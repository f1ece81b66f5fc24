"""Private keys as PEM (RFC 5915)."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fastecdsa.curve import Curve


class PEMEncoder:
    """Private keys of the form "EC PRIVATE KEY"."""

    @staticmethod
    def encode_private_key(d: int, curve: Curve) -> str:
        """Encode a private key without encryption."""
        key = ec.derive_private_key(d, curve.parameters)
        form = PrivateFormat.TraditionalOpenSSL
        return key.private_bytes(Encoding.PEM, form, NoEncryption()).decode().rstrip("\n")
