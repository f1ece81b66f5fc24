"""A peer's identity: one Ed25519 key, both its libp2p PeerID and its author key.

Sources: RFC 8032; https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.errors import BadKey, BadSignature

MANIFEST_DOMAIN = b"swarm-node/2/manifest"
FRAME_DOMAIN = b"swarm-node/1/frame"
ANNOUNCEMENT_DOMAIN = b"swarm-node/2/announcement"
PROFILE_DOMAIN = b"swarm-node/1/profile"
SWARM_DOMAIN = b"swarm-node/1/swarm"
SHARD_DOMAIN = b"swarm-node/2/shard"
READER_DOMAIN = b"swarm-node/2/reader"
TASK_DOMAIN = b"swarm-node/1/task"
HELDOUT_DOMAIN = b"swarm-node/1/heldout"
WORK_DOMAIN = b"swarm-node/1/work"


def domain_separated(domain: bytes, message: bytes) -> bytes:
    """Return ``u8 length of domain ‖ domain ‖ message``, which is unambiguous."""
    return bytes((len(domain),)) + domain + message


def domain_hash(domain: bytes, *parts: bytes) -> bytes:
    """Return the SHA-256 of the joined parts within a domain, 32 bytes."""
    return sha256(domain_separated(domain, b"".join(parts))).digest()


KEY_BYTES = 32
SIGNATURE_BYTES = 64

REMEMBERED = 1 << 14  # cached keys, more than accounts; each takes about 300 bytes per cache below
# Heads of protobuf PrivateKey (Ed25519, 64 bytes) and PublicKey in an identity multihash.
_PRIVATE_HEAD = bytes.fromhex("08011240")
_PEER_ID_HEAD = bytes.fromhex("002408011220")
_FILE_BYTES = len(_PRIVATE_HEAD) + 64

_P = 2**255 - 19  # the curve's field, its constant d, and y of the points of order 1, 2, 4 and 8
_D = -121665 * pow(121666, -1, _P) % _P
_SMALL_ORDER_Y = frozenset(
    (
        0,
        1,
        _P - 1,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    )
)


class KeyFileError(Exception):
    """A key file that cannot be used as it is; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key, its raw Ed25519 public key (32 bytes), and its libp2p PeerID."""

    _key: Ed25519PrivateKey = field(repr=False, compare=False)
    author: bytes
    peer_id: str

    @classmethod
    def generate(cls) -> Identity:
        """Generate a random identity."""
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Derive an identity from a 32-byte RFC 8032 seed; for tests and test vectors."""
        return cls._of(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_bytes(cls, data: bytes) -> Identity:
        """Read what :meth:`export` returns; raise BadKey for anything else."""
        if len(data) != _FILE_BYTES or not data.startswith(_PRIVATE_HEAD):
            raise BadKey("not a libp2p Ed25519 private key")
        identity = cls.from_seed(data[4:36])
        if identity.author != data[36:]:
            raise BadKey("the public half of the key does not belong to its seed")
        return identity

    @classmethod
    def load(cls, path: Path | str) -> Identity:
        """Load the identity in a key file; raise ``KeyFileError`` if it is not usable."""
        try:
            with Path(path).open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(_FILE_BYTES + 1)
        except FileNotFoundError as error:
            raise KeyFileError(f"no key file at {path}: create one, or correct the path") from error
        except OSError as error:
            remedy = "look at its owner and permissions, or correct the path"
            problem = f"cannot read key file {path} ({error.strerror})"
            raise KeyFileError(f"{problem}: {remedy}") from error
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyFileError(
                f"key file {path} is open to other users (mode {mode & 0o777:04o}): "
                f"run `chmod 600 {path}`; if others may have read it, make a new identity"
            )
        try:
            return cls.from_bytes(data)
        except BadKey as error:
            remedy = "Restore it from a backup, or move it away and create a new identity"
            raise KeyFileError(f"{path} holds no usable key: {error}. {remedy}") from error

    @classmethod
    def create(cls, path: Path | str) -> Identity:
        """Create an identity in a new file of mode 0600; raise ``KeyFileError`` on failure."""
        identity = cls.generate()
        path = Path(path)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise KeyFileError(f"key file {path} exists: load it, or move it away first") from error
        except OSError as error:
            raise KeyFileError(f"cannot create key file {path}: {error.strerror}") from error
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(identity.export())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            path.unlink(missing_ok=True)
            raise KeyFileError(f"cannot write key file {path}: {error.strerror}") from error
        return identity

    @classmethod
    def _of(cls, key: Ed25519PrivateKey) -> Identity:
        author = key.public_key().public_bytes_raw()
        return cls(key, author, peer_id_of(author))

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of ``message`` within ``domain``."""
        return self._key.sign(domain_separated(domain, message))

    def export(self) -> bytes:
        """Return libp2p's protobuf ``PrivateKey``: head, seed, public key; 68 bytes."""
        return _PRIVATE_HEAD + self._key.private_bytes_raw() + self.author


def verify(author: bytes, domain: bytes, message: bytes, signature: bytes) -> None:
    """Check the author's signature over ``message`` within ``domain``.

    Like ``verify_strict`` elsewhere, it refuses small-order keys and R beyond RFC 8032: one
    signature would be valid for many messages. Raises ``BadKey`` or ``BadSignature``.
    """
    check_key(author)
    if len(signature) != SIGNATURE_BYTES or _y(signature[:KEY_BYTES]) in _SMALL_ORDER_Y:
        raise BadSignature("malformed signature")
    try:
        key = Ed25519PublicKey.from_public_bytes(author)
        key.verify(signature, domain_separated(domain, message))
    except InvalidSignature as error:
        raise BadSignature("the signature does not verify") from error


@lru_cache(REMEMBERED)
def check_key(author: bytes) -> None:
    """Raise BadKey unless ``author`` is canonical, on the curve, not of small order."""
    if len(author) != KEY_BYTES:
        raise BadKey(f"public key of {len(author)} bytes, expected {KEY_BYTES}")
    y = _y(author)
    if y >= _P:
        raise BadKey("public key is not canonical")
    if y in _SMALL_ORDER_Y:
        raise BadKey("public key has small order")
    # x² = (y² - 1) / (dy² + 1) has a root exactly if numerator times denominator is a square.
    square = y * y % _P
    if pow((square - 1) * (_D * square + 1), (_P - 1) // 2, _P) != 1:
        raise BadKey("public key is not on the curve")


@lru_cache(REMEMBERED)
def peer_id_of(author: bytes) -> str:
    """Return the libp2p PeerID of a public key: base58 of its identity multihash."""
    return encode_base58(_PEER_ID_HEAD + author)


@lru_cache(REMEMBERED)
def author_of(peer_id: str) -> bytes:
    """Return the public key inside an Ed25519 PeerID; raise BadKey if there is none."""
    raw = decode_base58(peer_id) if len(peer_id) <= 64 else None
    if raw is None or len(raw) != 38 or not raw.startswith(_PEER_ID_HEAD):
        raise BadKey(f"{peer_id[:64]!r} is not the PeerID of an Ed25519 key (12D3Koo…)")
    author = raw[len(_PEER_ID_HEAD) :]
    check_key(author)
    return author


def _y(point: bytes) -> int:
    return int.from_bytes(point, "little") & ((1 << 255) - 1)


_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUE = {letter: value for value, letter in enumerate(_ALPHABET)}


def encode_base58(data: bytes) -> str:
    """Encode each leading zero byte as a "1" and the rest as one big number."""
    number = int.from_bytes(data, "big")
    letters = ""
    while number:
        number, digit = divmod(number, 58)
        letters = _ALPHABET[digit] + letters
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + letters


def decode_base58(text: str) -> bytes | None:
    """Decode what :func:`encode_base58` returns; None for an invalid character."""
    number = 0
    for letter in text:
        value = _VALUE.get(letter)
        if value is None:
            return None
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
