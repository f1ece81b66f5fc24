"""What this node knows of the authors of groups: what they gave, and what that was worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from node.dashboard.rounds import Rounds
from node.dashboard.usefulness import Learned, usefulness
from node.monitor.present_status import TOLD
from protocol.errors import BadKey
from protocol.identity import check_key, peer_id_of
from swarm.reputation import Account, is_banned, standing, strikes_now

MOST = 200
"""Authors in an answer: those with most groups in updates, then those who gave most."""


def authors(
    rounds: Rounds, accounts: Sequence[Account], peers: Sequence[Mapping[str, Any]], now: float
) -> list[dict[str, Any]]:
    """An entry for each author with an account or groups in updates, the most used first.

    Args:
        peers: those of the status, which have what each says of itself.
        now: unix time.
    """
    told = {peer["peer_id"]: peer for peer in peers}
    by_key = {account.author.hex(): account for account in accounts}
    used = rounds.named["authors"].totals(rounds.column("round"), rounds.weights())
    known = {**dict.fromkeys(by_key, 0.0), **used}
    admitted = {name: account.admitted for name, account in by_key.items()}
    order = sorted(known, key=lambda name: (-known[name], -admitted.get(name, 0), name))[:MOST]
    all_groups = _all_groups(rounds)
    gains = _gains(rounds, order)
    return [
        {
            "author": name,
            "peer_id": (peer_id := _peer_id(name)),
            **{key: told.get(peer_id, {}).get(key) for key in TOLD},
            "used": round(known[name]),
            "share": known[name] / all_groups if all_groups else 0.0,
            "usefulness": gains.get(name),
            **_account(by_key.get(name), now),
        }
        for name in order
    ]


def _all_groups(rounds: Rounds) -> float:
    """In all updates, own and external."""
    both = rounds.column("groups_own") + rounds.column("groups_external")
    return float(both @ rounds.weights()) if len(both) else 0.0


def _gains(rounds: Rounds, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """By author, of those of whom anything was measured."""
    numbers, weights, useful = rounds.column("round"), rounds.weights(), rounds.named["useful"]
    places, which = useful.rows(numbers)
    asked = {name: n for name in names if (n := useful.number(name)) is not None}
    learned = Learned(
        heldout=rounds.column("reward_eval"),
        own=rounds.column("groups_own") * rounds.column("informative_own") * weights,
        places=places,
        authors=which,
        values=useful.values * weights[places],
    )
    found = usefulness(learned, list(asked.values()))
    return {} if found is None else dict(zip(asked, map(asdict, found), strict=True))


def _account(account: Account | None, now: float) -> dict[str, Any]:
    if account is None:
        return {
            "admitted": 0,
            "refused": {},
            "standing": None,
            "strikes": 0,
            "banned": False,
            "seen": None,
        }
    return {
        "admitted": account.admitted,
        "refused": dict(account.refused),
        "standing": standing(account, now),
        "strikes": strikes_now(account, now),
        "banned": is_banned(account, now),
        "seen": account.touched or None,
    }


def _peer_id(author: str) -> str | None:
    """What a key is called in the network; None of what is no key."""
    try:
        raw = bytes.fromhex(author)
        check_key(raw)
    except (ValueError, BadKey):
        return None
    return peer_id_of(raw)
