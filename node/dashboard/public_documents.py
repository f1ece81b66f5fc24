"""The files of the swarm's public page: JSON documents and static files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from node.dashboard.app import STATIC as DASHBOARD
from node.dashboard.rounds import plain
from node.monitor.present_status import PROFILE_KEYS
from protocol.identity import peer_id_of
from protocol.manifest import Manifest
from swarm.census import Author, Census, ClaimedProfile, Mean, columns, rewards

# Figures of the page by the names that the census has for them.
NOW = ("nodes", "bootstrap", "estimated", "connected", "groups_offered", "relayed", "direct")
TOTAL = ("authors", "offered", "checked", "verified", "refused")
LISTED = 500  # maximum authors on the page
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Observed:
    """The facts of a page beyond the census."""

    version: str  # of this program
    time: float  # of the observation, unix seconds
    every: float  # seconds between two observations
    peer_id: str  # of the observer
    kind: str  # "bootstrap" or "observe"
    join: Sequence[str]  # addresses that other nodes can dial
    manifest: Manifest
    swarm_id: bytes


def documents(census: Census, seen: Observed) -> dict[str, Any]:
    """Return the page's three documents by name: swarm, history and authors."""
    buckets, authors = census.state.buckets, census.state.authors
    order = sorted(authors, key=lambda key: (-authors[key].verified, -authors[key].last, key))
    found = columns(buckets)
    found["nodes"] = [_round(nodes) for nodes in found["nodes"]]
    learned = {env: list(map(_round, means)) for env, means in rewards(buckets).items()}
    return {
        "swarm": _swarm(census, seen),
        "history": {**found, "rewards": learned},
        "authors": {
            "authors": [_author(key, authors[key]) for key in order[:LISTED]],
            "more": max(0, len(order) - LISTED),
        },
    }


def dialled(addresses: Sequence[str]) -> list[str]:
    """Return the non-loopback addresses, or all if every one is loopback."""

    def is_loopback(address: str) -> bool:
        _, kind, host, *_ = [*address.split("/"), "", ""]
        return kind in ("ip4", "ip6") and ip_address(host).is_loopback

    return [address for address in addresses if not is_loopback(address)] or list(addresses)


def _swarm(census: Census, seen: Observed) -> dict[str, Any]:
    manifest = seen.manifest
    there = [census.state.authors.get(author) for author in census.state.present]
    profiles = [author.told if author else ClaimedProfile() for author in there]
    return {
        "version": seen.version,
        "time": seen.time,
        "since": census.state.since,
        "every": seen.every,
        "observer": {"peer_id": seen.peer_id, "kind": seen.kind},
        "swarm": {
            "id": seen.swarm_id.hex(),
            "name": manifest.name,
            "founder": manifest.founder.hex(),
            "created": manifest.created,
            "epoch_seconds": manifest.epoch_seconds,
            "families": [{"name": e.name, "levels": len(e.levels)} for e in manifest.catalogue],
        },
        "join": list(seen.join),
        "now": _picked(census.now, *NOW),
        "total": _picked(census.state.total, *TOTAL),
        "models": _counted("model", [each.model for each in profiles]),
        "versions": _counted("version", [each.version for each in profiles]),
        "rewards": [
            _picked(found, "env", "level", "groups")
            | {"reward": _round(found.reward), "low": _round(found.low), "high": _round(found.high)}
            for found in census.state.lately.estimates()
        ],
    }


def _picked(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _counted(name: str, values: Sequence[str | None]) -> list[dict[str, Any]]:
    return [{name: value, "nodes": nodes} for value, nodes in Counter(values).most_common()]


def _author(key: str, author: Author) -> dict[str, Any]:
    return {
        "author": key,
        "peer_id": peer_id_of(bytes.fromhex(key)),
        **_picked(author.told, *PROFILE_KEYS),
        **_picked(author, "first", "last", "policy_step"),
        "bootstrap": not author.offered and not author.policy_step,
        **_picked(author, "link", "offered", "checked", "verified", "refused"),
        "rewards": {env: _mean(mean) for env, mean in sorted(author.rewards.items())},
        "days": [[d.start, d.offered, d.rewards.groups, _mean(d.rewards)] for d in author.days],
    }


def _mean(mean: Mean) -> float | None:
    return _round(mean.value)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


STATIC = Path(__file__).parent / "public_static"
INDEX = "index.html"
# Files of the dashboard, under ``static/shared/``; the imports between them stay valid.
SHARED = (
    "chart.js",
    "format.js",
    "icon.svg",
    "parts.js",
    "style.css",
    "theme.js",
    "vendor/htm-preact.js",
    "vendor/htm.LICENSE",
    "vendor/preact.LICENSE",
    "vendor/uplot.LICENSE",
    "vendor/uplot.js",
)

Page = Mapping[str, bytes]  # contents by path


def unchanging() -> dict[str, bytes]:
    """Return the page's static files; raise OSError if one cannot be read."""
    own = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*")}
    found = {
        name if name == INDEX else f"static/{name}": path.read_bytes()
        for name, path in own.items()
        if path.is_file()
    }
    shared = {f"static/shared/{name}": (DASHBOARD / name).read_bytes() for name in SHARED}
    return found | shared


def data(documents: Mapping[str, Any]) -> dict[str, bytes]:
    """Encode documents as the JSON files that the page reads."""
    return {f"data/{name}.json": plain(document).encode() for name, document in documents.items()}
