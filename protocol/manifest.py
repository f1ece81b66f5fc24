"""Manifests: a swarm's tasks, time slots, limits and admission rule.

The swarm creator signs it. The swarm id hashes key and body, so any peer can serve the manifest.
Invalid data raises ``ProtocolError``; a failed admission check raises ``NotAdmitted``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from reprlib import repr as short
from typing import Literal, TypeAlias, get_args

from protocol import codec, envelope
from protocol.errors import BadSchema, NotAdmitted
from protocol.identity import KEY_BYTES, SWARM_DOMAIN, WORK_DOMAIN, Identity, check_key, domain_hash

MAX_AUTHORS = 4096
MAX_WORK_BITS = 40


@dataclass(frozen=True, slots=True)
class Open:
    """Admission of every author."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """Admission of the listed public keys, which are sorted and unique."""

    authors: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.authors) <= MAX_AUTHORS:
            raise BadSchema(f"allow list takes 1 to {MAX_AUTHORS} authors")
        for author in self.authors:
            check_key(codec.blob(author, "allowed author", KEY_BYTES))
        if list(self.authors) != sorted(set(self.authors)):
            raise BadSchema("allow list must be sorted, without repeats")


@dataclass(frozen=True, slots=True)
class ProofOfWork:
    """Admission of keys with a nonce: about ``2**bits`` hashes, once per swarm."""

    bits: int

    def __post_init__(self) -> None:
        codec.integer(self.bits, "proof of work bits", 1, MAX_WORK_BITS)


AdmissionRule: TypeAlias = Open | AllowList | ProofOfWork


def check_author(rule: AdmissionRule, author: bytes) -> None:
    """Check that no allow list excludes ``author``; a frame alone permits only this."""
    if isinstance(rule, AllowList) and author not in rule.authors:
        raise NotAdmitted(f"author {author.hex()} is not on the manifest's allow list")


def check_admitted(rule: AdmissionRule, swarm_id: bytes, author: bytes, nonce: int) -> None:
    """Check that the rule admits an author that announces with ``nonce``."""
    check_author(rule, author)
    if isinstance(rule, ProofOfWork) and work(swarm_id, author, nonce) < rule.bits:
        raise NotAdmitted(f"nonce {nonce} shows less work than the {rule.bits} bits due")


def work(swarm_id: bytes, author: bytes, nonce: int) -> int:
    """Return the leading zero bits of the hash of swarm, author and nonce."""
    digest = domain_hash(WORK_DOMAIN, swarm_id, author, nonce.to_bytes(8, "big"))
    return 256 - int.from_bytes(digest, "big").bit_length()


def find_nonce(rule: AdmissionRule, swarm_id: bytes, author: bytes) -> int:
    """Return the smallest accepted nonce; proof of work takes ``2**bits`` hashes."""
    return next(nonces(rule, swarm_id, author, count()))


def nonces(
    rule: AdmissionRule, swarm_id: bytes, author: bytes, among: Iterable[int]
) -> Iterator[int]:
    """Return the accepted nonces among some numbers, one by one as they are found."""
    bits = rule.bits if isinstance(rule, ProofOfWork) else 0
    return (nonce for nonce in among if work(swarm_id, author, nonce) >= bits)


def rule_to_wire(rule: AdmissionRule) -> list[object]:
    """Encode as ``["open"]``, ``["allow-list", keys]`` or ``["proof-of-work", bits]``."""
    match rule:
        case Open():
            return ["open"]
        case AllowList(authors):
            return ["allow-list", list(authors)]
        case ProofOfWork(bits):
            return ["proof-of-work", bits]


def rule_from_wire(wire: object) -> AdmissionRule:
    """Decode what :func:`rule_to_wire` returns."""
    match codec.items(wire, "admission", 2, least=1):
        case ["open"]:
            return Open()
        case ["allow-list", authors]:
            keys = codec.items(authors, "allow list", MAX_AUTHORS, least=1)
            return AllowList(tuple(codec.blob(key, "allowed author", KEY_BYTES) for key in keys))
        case ["proof-of-work", bits]:
            return ProofOfWork(codec.integer(bits, "proof of work bits", 1, MAX_WORK_BITS))
        case other:
            raise BadSchema(f"admission: unknown rule {short(other)}")


Source = Literal["reasoning-gym", "jsonl", "plugin", "environment"]
Extract = Literal["text", "answer_tag", "boxed"]
ENVIRONMENT: Source = "environment"

QUESTION = "{question}"
MAX_NESTING = 16  # in a level's settings: parsers differ, but every node must read the manifest
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ENV_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_LIMITS = codec.CodecLimits(
    codec.MAX_MANIFEST_BYTES, depth=4, items=1 << 15, str_len=1 << 13, bin_len=32
)
_FIELDS = (
    *("name", "created", "catalogue", "epoch_seconds", "max_frame_bytes", "max_groups_per_epoch"),
    *("max_completions", "max_text_bytes", "max_age_epochs", "admission"),
)
_ENV_FIELDS = ("name", "source", "version", "levels", "template", "extract")


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """One task family of the task set; construction checks every field."""

    name: str  # unique in the task set; letters, digits, ``_ . -``
    source: Source  # builds and scores tasks; for ``environment``, completions are trajectories
    version: str  # of that source; for a JSONL file the hex SHA-256 of its bytes
    levels: tuple[str, ...]  # settings, one :func:`canonical_json` object per difficulty level
    template: str  # the prompt, with ``{question}`` in it exactly once
    extract: Extract  # how to extract the answer from a completion

    def __post_init__(self) -> None:
        context = f"catalogue entry {short(self.name)}"
        if type(self.name) is not str or not _ENV_NAME.fullmatch(self.name):
            raise BadSchema(f"{context}: name takes 1 to 64 letters, digits and _ . -")
        codec.choice(self.source, f"{context}: source", get_args(Source))
        codec.choice(self.extract, f"{context}: extract", get_args(Extract))
        codec.label(self.version, f"{context}: version", 128)
        if not 1 <= len(self.levels) <= 64:
            raise BadSchema(f"{context}: levels takes 1 to 64 settings, got {len(self.levels)}")
        for number, level in enumerate(self.levels):
            _check_level(level, f"{context}: level {number}")
        codec.text(self.template, f"{context}: template", 4096)
        if self.template.count(QUESTION) != 1:
            raise BadSchema(f"{context}: template must hold {QUESTION} exactly once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A swarm's settings; construction checks every field."""

    name: str  # for people; printable ASCII
    founder: bytes  # public key of the swarm creator, which signs the manifest
    created: float  # Unix time, seconds
    catalogue: tuple[EnvSpec, ...]  # the task set: task families with unique names
    epoch_seconds: float = 60.0  # length of a time slot
    max_frame_bytes: int = 1 << 18
    max_groups_per_epoch: int = 256  # a group's ``index`` is below this
    max_completions: int = 64
    max_text_bytes: int = 1 << 16  # UTF-8 bytes of a completion's segments, and its token count
    max_age_epochs: int = 10  # time slots after which a group is no longer admitted
    admission: AdmissionRule = field(default_factory=Open)

    def __post_init__(self) -> None:
        codec.label(self.name, "name", 64)
        check_key(self.founder)
        codec.real(self.created, "created", 0.0, 2.0**40)
        if not 1 <= len(self.catalogue) <= 256:
            raise BadSchema(f"catalogue takes 1 to 256 families, got {len(self.catalogue)}")
        if len({env.name for env in self.catalogue}) < len(self.catalogue):
            raise BadSchema("catalogue names one family twice")
        codec.real(self.epoch_seconds, "epoch_seconds", 0.1, 86400.0)
        codec.integer(self.max_frame_bytes, "max_frame_bytes", 1 << 10, codec.MAX_FRAME_BYTES)
        codec.integer(self.max_groups_per_epoch, "max_groups_per_epoch", 1, 1 << 16)
        codec.integer(self.max_completions, "max_completions", 2, codec.MAX_COMPLETIONS)
        codec.integer(self.max_text_bytes, "max_text_bytes", 1, 1 << 20)
        codec.integer(self.max_age_epochs, "max_age_epochs", 1, 1 << 20)

    def env(self, name: str) -> EnvSpec:
        """Return the task family of that name; raise BadSchema if there is none."""
        for env in self.catalogue:
            if env.name == name:
                return env
        raise BadSchema(f"the task set has no family {short(name)}")


def sign_manifest(manifest: Manifest, identity: Identity) -> bytes:
    """Sign the manifest; raise BadSchema if ``identity`` is not the swarm creator."""
    if identity.author != manifest.founder:
        raise BadSchema("founder: only the swarm creator can sign a manifest")
    body = codec.encode(_to_wire(manifest))
    data = envelope.close(envelope.MANIFEST, envelope.NO_SWARM, identity, body)
    open_manifest(data)
    return data


def open_manifest(data: bytes) -> Manifest:
    """Return the manifest in a signed envelope, fully checked."""
    founder, body = envelope.open_envelope(
        envelope.MANIFEST, data, envelope.NO_SWARM, codec.MAX_MANIFEST_BYTES
    )
    return _from_wire(codec.decode(body, _LIMITS), founder)


def swarm_id(data: bytes) -> bytes:
    """Return the 32-byte id of a signed manifest's swarm: a hash of creator and body.

    It also works for another version of the protocol, so its swarm can be named. The signature is
    not hashed, so a manifest cannot get two ids; :func:`open_manifest` verifies it.
    """
    normalized = envelope.of_this_version(envelope.MANIFEST, data)
    founder, _, body = envelope.parts(envelope.MANIFEST, normalized, envelope.NO_SWARM)
    return domain_hash(SWARM_DOMAIN, founder, body)


def canonical_json(value: object) -> str:
    """Return canonical JSON: sorted keys, no blanks, only necessary escapes, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _check_level(level: object, context: str) -> None:
    text = codec.text(level, context, 4096)
    if _nesting(text) > MAX_NESTING:
        raise BadSchema(f"{context}: nested deeper than {MAX_NESTING}")
    try:
        value = json.loads(text)
        canonical = canonical_json(value)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"{context}: not JSON: {error}") from error
    if type(value) is not dict or canonical != text:
        raise BadSchema(f"{context}: expected a canonical JSON object, got {short(text)}")


def _nesting(text: str) -> int:
    depth = deepest = 0
    for char in _STRING.sub("", text):
        depth += (char in "[{") - (char in "]}")
        deepest = max(deepest, depth)
    return deepest


def _to_wire(manifest: Manifest) -> dict[str, object]:
    catalogue = [
        codec.record(env, _ENV_FIELDS) | {"levels": list(env.levels)} for env in manifest.catalogue
    ]
    overrides = {"catalogue": catalogue, "admission": rule_to_wire(manifest.admission)}
    return codec.record(manifest, _FIELDS) | overrides


def _from_wire(wire: object, founder: bytes) -> Manifest:
    values = dict(zip(_FIELDS, codec.fields(wire, _FIELDS, "manifest"), strict=True))
    catalogue = codec.items(values.pop("catalogue"), "catalogue", 256, least=1)
    admission = rule_from_wire(values.pop("admission"))
    return Manifest(
        founder=founder,
        catalogue=tuple(_env_from_wire(item) for item in catalogue),
        admission=admission,
        **values,  # type: ignore[arg-type]  # construction checks the rest
    )


def _env_from_wire(wire: object) -> EnvSpec:
    values = dict(zip(_ENV_FIELDS, codec.fields(wire, _ENV_FIELDS, "catalogue entry"), strict=True))
    values["levels"] = tuple(codec.items(values["levels"], "levels", 64, least=1))
    return EnvSpec(**values)  # type: ignore[arg-type]  # construction checks all fields
