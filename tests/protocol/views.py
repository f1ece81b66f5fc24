"""Values of the protocol as JSON, the way the test vectors write them.

Byte strings become lower-case hex, enumerations their numbers, tuples arrays, dataclasses objects
of their fields. Where strings and byte strings must be told apart (the codec's own vectors), byte
strings become ``{"hex": …}``.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import IntEnum

from protocol.manifest import AdmissionRule, AllowList, Open, ProofOfWork, rule_to_wire


def view(value: object) -> object:
    """``value`` as JSON types."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, (Open, AllowList, ProofOfWork)):
        return view_rule(value)
    if is_dataclass(value):
        return {field.name: view(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [view(item) for item in value]
    return value


def view_rule(rule: AdmissionRule) -> object:
    """An admission rule as it stands in the manifest, keys in hex."""
    return view(rule_to_wire(rule))


def tagged(value: object) -> object:
    """A codec value as JSON types, byte strings marked."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [tagged(item) for item in value]
    if isinstance(value, dict):
        return {key: tagged(item) for key, item in value.items()}
    return value
