"""A handshake of libp2p that ends once the listener has proved its PeerID."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from socket import gaierror

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protocol.identity import peer_id_of
from swarm.transport.protobuf import decode, one

PROTOCOL = b"Noise_XX_25519_ChaChaPoly_SHA256"
SIGNED = b"noise-libp2p-static-key:"
ED25519 = b"\x08\x01\x12\x20"
KEY_BYTES, TAG_BYTES = 32, 16
LARGEST_LINE = 64
LARGEST_MESSAGE = 4096
NONCE = bytes(12)


class NoPeer(Exception):  # noqa: N818
    """No answer, or no proof of an Ed25519 PeerID."""


async def who_answers(host: str, port: int, seconds: float) -> str:
    """Return a libp2p listener's PeerID, proved by signature; raise :class:`NoPeer`."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            for line in (b"/multistream/1.0.0\n", b"/noise\n"):
                writer.write(bytes((len(line),)) + line)
                if await _line(reader) != line:
                    raise NoPeer(f"{host} port {port} speaks another protocol")
            handshake = Handshake()
            first = handshake.first()
            writer.write(len(first).to_bytes(2, "big") + first)
            size = int.from_bytes(await reader.readexactly(2), "big")
            if size > LARGEST_MESSAGE:
                raise NoPeer(f"{host} port {port} sends a handshake of {size} bytes")
            return handshake.peer_of(await reader.readexactly(size))
    except (OSError, EOFError, TimeoutError) as error:
        raise NoPeer(f"no answer at {host} port {port}: {_reason(error)}") from error
    finally:
        if writer is not None:
            writer.close()


def _reason(error: OSError | EOFError) -> str:
    if isinstance(error, EOFError):
        return "the connection ended"
    if error.errno and not isinstance(error, gaierror):
        # asyncio replaces the system's text by one with an address in Python's notation.
        return os.strerror(error.errno)
    text = "it took too long" if isinstance(error, TimeoutError) else str(error)
    return error.strerror or text


class Handshake:
    """The initiator's side of one Noise handshake, up to the responder's proof."""

    def __init__(self) -> None:
        self._ours = X25519PrivateKey.generate()
        self._hash = self._chain = PROTOCOL
        self._key = b""
        self._mix(b"")

    def first(self) -> bytes:
        """Return the first message: an ephemeral public key and nothing else."""
        public = self._ours.public_key().public_bytes_raw()
        self._mix(public)
        self._mix(b"")
        return public

    def peer_of(self, second: bytes) -> str:
        """Return the PeerID that the second message proves; raise :class:`NoPeer`."""
        ends = KEY_BYTES, 2 * KEY_BYTES + TAG_BYTES
        remote, sealed, payload = second[: ends[0]], second[ends[0] : ends[1]], second[ends[1] :]
        try:
            self._mix(remote)
            self._agree(remote)
            static = self._open(sealed)
            self._agree(static)
            key, signature = identity_in(self._open(payload))
            Ed25519PublicKey.from_public_bytes(key).verify(signature, SIGNED + static)
        except (InvalidTag, InvalidSignature, ValueError) as error:
            reason = str(error) or "it cannot be verified"
            raise NoPeer(f"the answer proves no PeerID: {reason}") from error
        return peer_id_of(key)

    def _mix(self, data: bytes) -> None:
        self._hash = sha256(self._hash + data).digest()

    def _agree(self, public: bytes) -> None:
        # Mix the secret that our ephemeral key shares with ``public`` into chain and key.
        secret = self._ours.exchange(X25519PublicKey.from_public_bytes(public))
        keys = HKDF(hashes.SHA256(), 2 * KEY_BYTES, salt=self._chain, info=None).derive(secret)
        self._chain, self._key = keys[:KEY_BYTES], keys[KEY_BYTES:]

    def _open(self, ciphertext: bytes) -> bytes:
        plaintext = ChaCha20Poly1305(self._key).decrypt(NONCE, ciphertext, self._hash)
        self._mix(ciphertext)
        return plaintext


async def _line(reader: asyncio.StreamReader) -> bytes:
    # The length of a multistream-select line fits in one byte.
    size = (await reader.readexactly(1))[0]
    if size > LARGEST_LINE:
        raise NoPeer("the answer is not multistream-select")
    return await reader.readexactly(size)


def identity_in(payload: bytes) -> tuple[bytes, bytes]:
    """Return public key and signature of a handshake's payload.

    Raises ``ValueError`` if it is malformed or the key is not an Ed25519 key.
    """
    fields = decode(payload)
    key, signature = one(fields, 1), one(fields, 2)
    if not key.startswith(ED25519):
        raise ValueError("no Ed25519 key")
    return key[len(ED25519) :], signature
