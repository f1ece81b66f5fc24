"""Config sections and keys: definition, validation errors, TOML and Markdown."""

from __future__ import annotations

import difflib
import json
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from node.config.overrides import pasted_peer
from node.errors import ConfigError
from swarm.common.fair_limits import author_or_none
from swarm.common.util import counted

WIDTH = 96
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text"}
_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


TITLE = "# Configuration of a swarm-node."
ALL_KEYS = "# Every key is here. A key that you delete gets its default."
COMMON_KEYS = "# Other keys have their defaults. To see all keys: swarm-node init --full FOLDER"


def commented(config: BaseModel, only: Collection[str] | None) -> str:
    """Write ``config`` as TOML with comments; reading it back gives an equal config.

    With ``only``, write those dotted keys and changed ones, each with its first sentence.
    """
    lines = [TITLE, ALL_KEYS if only is None else COMMON_KEYS, ""]
    for name, section in config:
        body = list[str]()
        for key, field in type(section).model_fields.items():
            value, description = getattr(section, key), field.description or ""
            if only is not None:
                if f"{name}.{key}" not in only and value == field.default:
                    continue
                description = f"{_first_sentence(description)}."
            description = f"{description} ({values_of(field)})"
            body += textwrap.wrap(description, WIDTH, initial_indent="# ", subsequent_indent="# ")
            body += [f"{key} = {toml_value(value)}", ""]
        if body:
            lines += [f"# {purpose(section)}", f"[{name}]", "", *body]
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """Write one value as TOML; raise TypeError if TOML cannot express it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_value(str(k))} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def purpose(section: BaseModel) -> str:
    """Return what a section is for."""
    return (section.__doc__ or "").strip()


def values_of(field: FieldInfo) -> str:
    """Format the values a key takes, such as ``number, above 0, seconds``."""
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(toml_value(choice) for choice in get_args(annotation))
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if isinstance(choices := extra["choices"], list) and choices:
        return ", ".join([*map(toml_value, choices), "or a package's own"])
    if values := extra["values"]:
        return str(values)
    parts = [_TYPES.get(annotation, "table" if get_origin(annotation) is dict else "list")]
    for bound in field.metadata:
        if type(bound) in _BOUNDS:
            attribute, phrase = _BOUNDS[type(bound)]
            parts.append(f"{phrase} {getattr(bound, attribute)}")
    if extra["unit"]:
        parts.append(str(extra["unit"]))
    return ", ".join(parts)


MOST_WORDS = 25  # of a key's description in an error
_EXPECTED = {
    "bool": "true or false",
    "dict": "a table",
    "float": "a number",
    "int": "an integer",
    "list": "a list",
    "model": "a table",
    "string": "text",
    "tuple": "a list",
}
_WORDS = {
    "int_from_float": "It should be an integer",
    "string_pattern_mismatch": "It does not have the required form",
    "string_too_short": "It should not be empty",
}


def explain(root: type[BaseModel], error: ValidationError) -> ConfigError:
    """Convert a validation error: first wrong value, remedy, number of further errors."""
    details = error.errors()
    detail = details[0]
    value = detail["input"]
    values = _documented_values(root, [str(part) for part in detail["loc"]])
    depth = 2 if values else None  # each type of a union is reported under the key and its name
    place = detail["loc"][:depth]
    location = [str(part) for part in place]
    # A tuple with a wrong item is also reported as too short.
    others = [other for other in details[1:] if other["loc"][:depth] != place[: len(other["loc"])]]
    suffix = f" ({len(others)} more to correct after this one.)" if others else ""
    if detail["type"] == "extra_forbidden":
        remedy = _known(root, location, value)
        value = None if isinstance(value, Mapping) else value
    else:
        expected = f"It should be {values}" if values else wording(detail)
        remedy = f"{expected}. {_documented(root, location)}"
    return ConfigError(".".join(location), value, remedy + suffix)


def wording(detail: ErrorDetails) -> str:
    """Say what one value should be, in TOML terms, without a final period."""
    kind, _, reason = detail["type"].rpartition("_")
    if reason in ("type", "parsing") and kind in _EXPECTED:
        return f"It should be {_EXPECTED[kind]}"
    if detail["type"] in _WORDS:
        return _WORDS[detail["type"]]
    if detail["type"] == "too_short":
        return f"It should have at least {counted(detail['ctx']['min_length'], 'item')}"
    if detail["type"] == "too_long":
        return f"It should have at most {counted(detail['ctx']['max_length'], 'item')}"
    return detail["msg"].replace("Input should", "It should").rstrip(".")


def _known(root: type[BaseModel], location: Sequence[str], value: Any) -> str:
    *tables, last = location
    names = list(_section(root, tables).model_fields)
    noun = "table" if not tables and isinstance(value, Mapping) else "key"
    candidates = [
        f"{name}.{last}"
        for name in root.model_fields
        if last in _section(root, [name]).model_fields
    ]
    matches = difflib.get_close_matches(last, names, n=1, cutoff=0.7)
    if suggestions := ([".".join([*tables, *matches])] if matches else candidates):
        return f"Unknown {noun}: did you mean {suggestions[0]}?"
    return f"Unknown {noun}: remove it, or use one of {', '.join(names)}."


def _documented_values(root: type[BaseModel], location: Sequence[str]) -> str:
    """Return the ``values`` with which a key is defined; empty if its type says them."""
    if len(location) < 2 or location[0] not in root.model_fields:
        return ""
    field = _section(root, location[:1]).model_fields.get(location[1])
    extra = field.json_schema_extra if field else None
    return str(extra["values"]) if isinstance(extra, dict) else ""


def _documented(root: type[BaseModel], location: Sequence[str]) -> str:
    """Quote the key's purpose, range and default; deeper parts of a location are items."""
    if len(location) < 2:
        return f"Write it as a table: [{location[0]}]."
    field = _section(root, location[:1]).model_fields[location[1]]
    purpose = _first_sentence(field.description or "")
    if len(purpose.split()) > MOST_WORDS:
        purpose = purpose.partition(": ")[0]
    words = purpose.split()
    summary = " ".join(words[:MOST_WORDS]) + ("…" if len(words) > MOST_WORDS else ".")
    bounded = any(type(bound) in _BOUNDS for bound in field.metadata)
    limits = f"Allowed: {values_of(field)}. " if bounded else ""
    return f"{summary} ({limits}Default: {toml_value(field.default)}.)"


def _first_sentence(description: str) -> str:
    """Return the first sentence of a key's description, without its period."""
    return description.removesuffix(".").partition(". ")[0]


def _section(root: type[BaseModel], tables: Sequence[str]) -> type[BaseModel]:
    for name in tables:
        section = root.model_fields[name].annotation
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            raise TypeError(f"{name} is not a table")
        root = section
    return root


Texts = Annotated[tuple[Annotated[str, Strict()], ...], Strict(False)]
Filters = Annotated[
    tuple[Literal["unlikely", "overlong", "repeating", "trailing", "copied"], ...], Strict(False)
]
Options = dict[str, Any]
DecayRates = Annotated[tuple[Annotated[float, Strict(), Field(ge=0, lt=1)], ...], Strict(False)]


def key(
    default: Any,
    about: str,
    *,
    unit: str = "",
    choices: Sequence[str] = (),
    values: str = "",
    **limits: Any,
) -> Any:
    """Define a key; ``values`` describes the allowed values if the type does not."""
    extra: dict[str, Any] = {"unit": unit, "choices": list(choices), "values": values}
    return Field(default, description=about, json_schema_extra=extra, **limits)


def within(least: float, most: float | None = None, unit: str = "") -> dict[str, Any]:
    """Limit a key to numbers from ``least`` to ``most`` (None: any above), in a ``unit``."""
    return {"unit": unit, "ge": least} | ({} if most is None else {"le": most})


class Section(BaseModel):
    """A config section that rejects unknown keys, wrong types and non-finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/\s,]+)/tcp/(\d{1,5})(/[^/\s,]+)*")
# The TXT records ``_dnsaddr.NAME`` list the named peer's addresses with their ports.
_NAMED = re.compile(r"/dnsaddr/[^/\s,]+(/p2p/[^/\s,]+)")

_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]@]+)):(\d{1,5})")
_IP = {"ip4": IPv4Address, "ip6": IPv6Address}
_HIGHEST_PORT = 65535
_IN_TEXT = re.compile(r"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr)/[\w.:-]+(?:/[\w-]+)+")
_PLAIN = "/ip4/10.0.0.5/tcp/31337"
_PEER = f"{_PLAIN}/p2p/12D3Koo…"


def check_addresses(key: str, addresses: tuple[str, ...]) -> None:
    """Check addresses of ``network.listen``, ``.announce_maddrs`` or ``.peers``.

    Raises ConfigError if an address is not a multiaddress, or not one that this key takes.
    """
    dialed = key == "network.peers"
    for address in addresses:
        if dialed:
            _check_whole(key, address)
        if dialed and _NAMED.fullmatch(address) and _is_peer(address):
            continue
        match = _ADDRESS.fullmatch(address)
        if not match or not _has_host(match[1], match[2]) or int(match[3]) > _HIGHEST_PORT:
            example = _PEER if dialed else _PLAIN
            remedy = f"Write a multiaddress such as {example}, not a URL or host:port."
            raise ConfigError(key, address, remedy)
        if int(match[3]) == 0 and key != "network.listen":
            remedy = "Peers cannot dial port 0: write the port that the node listens on."
            raise ConfigError(key, address, remedy)
        if dialed and not _is_peer(address):
            fix = "Correct the peer's id" if "/p2p/" in address else "Add /p2p/ and the peer's id"
            hint = "the peer's start message shows the whole address"
            raise ConfigError(key, address, f"{fix} at the end, as in {_PEER}; {hint}.")


def check_trusted(peers: Sequence[str]) -> None:
    """Raise ConfigError if a peer of ``mixture.trusted`` is not a whole peer id."""
    for peer in peers:
        if author_or_none(peer) is None:
            remedy = "Write the whole peer id, as in swarm-node peers --json: 12D3Koo…"
            raise ConfigError("mixture.trusted", peer, remedy)


def _check_whole(key: str, text: str) -> None:
    """Raise ConfigError for text around a peer's address, or an id without an address."""
    addresses = {address for address in _IN_TEXT.findall(text) if _is_peer(address)}
    if len(addresses) == 1 and text not in addresses:
        raise ConfigError(key, text, f"Remove the text around the address: {addresses.pop()}")
    peer = pasted_peer(text)
    if not addresses and "/ip" not in text and "/dns" not in text and _is_peer(f"/p2p/{peer}"):
        remedy = f"Write the peer's whole address: {_PLAIN}/p2p/{peer}; its start message shows it."
        raise ConfigError(key, text, remedy)


def host_and_port(key: str, place: str) -> tuple[str, int]:
    """Parse ``host:port`` (IPv6 in brackets) or raise :class:`ConfigError`."""
    match = _PLACE.fullmatch(place)
    if not match or int(match[3]) > _HIGHEST_PORT:
        raise ConfigError(key, place, "Write host:port, as in 127.0.0.1:8710 or [::1]:8710.")
    return match[1] or match[2], int(match[3])


def _has_host(family: str, host: str) -> bool:
    try:
        return family not in _IP or bool(_IP[family](host))
    except ValueError:
        return False


def _is_peer(address: str) -> bool:
    _, separator, peer = address.rpartition("/p2p/")
    return bool(separator) and author_or_none(peer) is not None
