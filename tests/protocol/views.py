"""Values of the protocol as JSON, in the form of the test vectors.

Byte strings become lower-case hex, enumerations their numbers, tuples arrays, dataclasses objects
of their fields. If strings and byte strings must differ (in the codec's own vectors), byte strings
become ``{"hex": …}``.
"""

from dataclasses import fields, is_dataclass
from enum import IntEnum

from protocol.manifest import (
    AllowList,
    Manifest,
    Open,
    ProofOfWork,
    rule_to_wire,
    sign_manifest,
    swarm_id,
)
from tests.protocol.samples import ALICE, MANIFEST

Wrong = bytes | tuple[bytes, str]
"""An invalid input; it raises ``bad_schema`` unless it names another error."""


def view(value: object) -> object:
    """Return ``value`` as JSON types; an admission rule as in the manifest."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, (Open, AllowList, ProofOfWork)):
        return view(rule_to_wire(value))
    if is_dataclass(value):
        return {field.name: view(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [view(item) for item in value]
    return value


def tagged(value: object) -> object:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [tagged(item) for item in value]
    if isinstance(value, dict):
        return {key: tagged(item) for key, item in value.items()}
    return value


def valid(name: str, data: bytes, expected: object, **fields: object) -> dict:
    return {"name": name, "input": data.hex(), **fields, "expected": expected}


def invalid(cases: dict[str, Wrong], **fields: object) -> list[dict]:
    named = {n: w if isinstance(w, tuple) else (w, "bad_schema") for n, w in cases.items()}
    return [
        {"name": name, "input": data.hex(), **fields, "error": error}
        for name, (data, error) in named.items()
    ]


def in_swarm(manifest: Manifest = MANIFEST) -> dict:
    signed = sign_manifest(manifest, ALICE)
    return {"swarm_id": swarm_id(signed).hex(), "manifest": signed.hex()}
