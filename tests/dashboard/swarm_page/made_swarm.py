"""What an observer of a swarm writes for the swarm's page, without one."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

DAY, HOUR, BUCKET = 86_400, 3_600, 600
FAMILIES = ("sorting", "sums", "last letters")
MODELS = ("org/small-0.5b", "org/medium-1b", None)
ADDRESS = "/ip4/203.0.113.5/tcp/4801/p2p/12D3KooW" + "s" * 44
Page = dict[str, Any]


def key(at: int) -> str:
    """The public key of one author, in hex."""
    return sha256(str(at).encode()).hexdigest()


def made(
    points: int = 300, authors: int = 12, texts: Sequence[str] = (), every: float = 60
) -> Page:
    """The three files of a page, by name.

    Args:
        points: buckets of ten minutes in the history.
        authors: of whom the list tells.
        texts: stand wherever somebody else chooses a text, one after the other.
        every: seconds between two looks.
    """
    now = int(time.time())
    people = [_author(at, now, texts) for at in range(authors)]
    families = list(texts[:30]) or list(FAMILIES)
    return {
        "swarm": _swarm(now, people, families, texts, every),
        "history": _history(now, points, families),
        "authors": {"authors": people, "more": 3},
    }


def empty(every: float = 60) -> Page:
    """The page of a swarm in which nobody is, at its first look."""
    page = made(0, 0, every=every)
    page["authors"]["more"] = 0
    nothing = {"offered": 0, "checked": 0, "verified": 0, "refused": {}, "authors": 0}
    page["swarm"] |= {"total": nothing, "models": [], "versions": [], "rewards": [], "join": []}
    page["swarm"]["now"] |= {"nodes": 0, "bootstrap": 0, "groups_offered": 0, "estimated": None}
    return page


def _swarm(
    now: int, people: list[Page], families: list[str], texts: Sequence[str], every: float
) -> Page:
    refused = dict.fromkeys(texts, 2) or {"reward_mismatch": 3, "too_slow": 1}
    named = list(texts) or ["sorting together"]
    return {
        "version": "0.1.0",
        "time": now,
        "since": now - 3 * DAY,
        "every": every,
        "observer": {"peer_id": "12D3KooW" + "o" * 44, "kind": "bootstrap"},
        "swarm": {
            "id": key(-1),
            "name": named[0],
            "founder": key(-2),
            "created": now - 30 * DAY,
            "epoch_seconds": 300.0,
            "families": [{"name": family, "levels": 3} for family in families],
        },
        "join": [ADDRESS, ADDRESS.replace("ip4/203.0.113.5", "dns4/seed.example.org"), *texts],
        "now": {
            "nodes": len(people),
            "bootstrap": 2,
            "estimated": 40,
            "connected": 6,
            "groups_offered": 321,
            "relayed": 2,
            "direct": 4,
        },
        "total": {
            "authors": len(people) + 3,
            "offered": 9_000,
            "checked": 900,
            "verified": 870,
            "refused": refused,
        },
        "models": [{"model": each, "nodes": 4} for each in texts or MODELS],
        "versions": [{"version": each, "nodes": 4} for each in texts or ("0.1.0", None)],
        "rewards": [
            {"env": env, "level": 1, "groups": 30, "reward": 0.5, "low": 0.4, "high": 0.6}
            for env in families
        ]
        + [{"env": "odd", "level": 2, "groups": 1, "reward": 1.0, "low": None, "high": None}],
    }


def _history(now: int, points: int, families: list[str]) -> Page:
    begin = now - now % BUCKET - points * BUCKET
    times = [begin + at * BUCKET for at in range(points)]

    def wave(low: float, high: float) -> list[float | None]:
        half = (high - low) / 2
        curve = [low + half + half * math.sin(at / 9) for at in range(points)]
        return [None if at % 50 == 7 else value for at, value in enumerate(curve)]

    return {
        "time": times,
        "seconds": [BUCKET] * points,
        "nodes": wave(5, 12),
        "joined": wave(0, 2),
        "left": wave(0, 1),
        "offered": wave(60, 120),
        "checked": wave(6, 12),
        "verified": wave(5, 11),
        "refused": wave(0, 1),
        "rewards": {env: wave(0.1, 0.2 + 0.02 * at) for at, env in enumerate(families)},
    }


def _author(at: int, now: int, texts: Sequence[str]) -> Page:
    text = texts[at % len(texts)] if texts else None
    nobody = text is None and at % 3 == 2
    today = now - now % DAY
    rewards = {text: 0.5} if text is not None else {"sorting": 0.5, "sums": 0.25}
    return {
        "author": key(at),
        "peer_id": f"12D3KooW{key(at)[:44]}",
        "name": None if nobody else text if text is not None else f"node {at}",
        "line": None if nobody else text if text is not None else "trains at night",
        "model": None if nobody else text if text is not None else MODELS[0],
        "version": None if nobody else text if text is not None else "0.1.0",
        "first": now - 3 * DAY,
        "last": now - 60 * at,
        "policy_step": 100 + at,
        "bootstrap": at % 5 == 4,
        "link": ("direct", "relayed", None)[at % 3],
        "offered": 1_000 - at,
        "checked": 100,
        "verified": 98 - at % 90,
        "refused": {text: 2} if text is not None else {"reward_mismatch": at % 3},
        "rewards": {} if nobody else rewards,
        "days": [[today - n * DAY, 40 + n, 4, 0.5 if n % 4 else None] for n in range(29, -1, -1)],
    }
