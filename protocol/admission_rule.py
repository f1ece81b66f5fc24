"""Who may take part in a swarm: anybody, a list of authors, or whoever has worked for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from reprlib import repr as short
from typing import TypeAlias

from protocol import domains, schema
from protocol.errors import BadSchema, NotAdmitted
from protocol.identity import KEY_BYTES, check_key

MAX_AUTHORS = 4096
MAX_WORK_BITS = 40


@dataclass(frozen=True, slots=True)
class Open:
    """Everybody."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """The named public keys, sorted and each once."""

    authors: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.authors) <= MAX_AUTHORS:
            raise BadSchema(f"allow list takes 1 to {MAX_AUTHORS} authors")
        for author in self.authors:
            check_key(schema.blob(author, "allowed author", KEY_BYTES))
        if list(self.authors) != sorted(set(self.authors)):
            raise BadSchema("allow list must be sorted, without repeats")


@dataclass(frozen=True, slots=True)
class ProofOfWork:
    """Whoever found a nonce for its key: about ``2**bits`` hashes, once for each swarm."""

    bits: int

    def __post_init__(self) -> None:
        schema.integer(self.bits, "proof of work bits", 1, MAX_WORK_BITS)


AdmissionRule: TypeAlias = Open | AllowList | ProofOfWork


def check_author(rule: AdmissionRule, author: bytes) -> None:
    """Returns unless an allow list leaves ``author`` out: what a frame alone can be judged by.

    Raises:
        NotAdmitted
    """
    if isinstance(rule, AllowList) and author not in rule.authors:
        raise NotAdmitted(f"author {author.hex()} is not on the manifest's allow list")


def check_admitted(rule: AdmissionRule, swarm_id: bytes, author: bytes, nonce: int) -> None:
    """Returns if the rule lets in an author who announces with ``nonce``.

    Raises:
        NotAdmitted
    """
    check_author(rule, author)
    if isinstance(rule, ProofOfWork) and work(swarm_id, author, nonce) < rule.bits:
        raise NotAdmitted(f"nonce {nonce} shows less work than the {rule.bits} bits due")


def work(swarm_id: bytes, author: bytes, nonce: int) -> int:
    """Leading zero bits of the hash of swarm, author and nonce."""
    hashed = domains.digest(domains.WORK, swarm_id, author, nonce.to_bytes(8, "big"))
    return 256 - int.from_bytes(hashed, "big").bit_length()


def find_nonce(rule: AdmissionRule, swarm_id: bytes, author: bytes) -> int:
    """The smallest nonce that the rule accepts; 0 where none is due. Takes ``2**bits`` hashes."""
    if not isinstance(rule, ProofOfWork):
        return 0
    return next(n for n in count() if work(swarm_id, author, n) >= rule.bits)


def rule_to_wire(rule: AdmissionRule) -> list[object]:
    """``["open"]``, ``["allow-list", [author, …]]`` or ``["proof-of-work", bits]``."""
    match rule:
        case Open():
            return ["open"]
        case AllowList(authors):
            return ["allow-list", list(authors)]
        case ProofOfWork(bits):
            return ["proof-of-work", bits]


def rule_from_wire(wire: object) -> AdmissionRule:
    """The inverse of :func:`rule_to_wire`.

    Raises:
        BadSchema, BadKey, TooManyItems
    """
    match schema.items(wire, "admission", 2, least=1):
        case ["open"]:
            return Open()
        case ["allow-list", authors]:
            keys = schema.items(authors, "allow list", MAX_AUTHORS, least=1)
            return AllowList(tuple(schema.blob(key, "allowed author", KEY_BYTES) for key in keys))
        case ["proof-of-work", bits]:
            return ProofOfWork(schema.integer(bits, "proof of work bits", 1, MAX_WORK_BITS))
        case other:
            raise BadSchema(f"admission: unknown rule {short(other)}")
