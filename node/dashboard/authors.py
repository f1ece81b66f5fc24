"""What this node knows of the authors of groups: what they gave, and what that was worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.dashboard.rounds import Rounds
from node.monitor.present_status import TOLD
from protocol.errors import BadKey
from protocol.identity import check_key, peer_id_of
from swarm.reputation import Account, is_banned, standing, strikes_now

LEAST = 4
"""Changes of the held-out reward, below which nothing is said."""
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Usefulness:
    """A gain of held-out reward, and the interval that it lies in."""

    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What each round learned from.

    Attributes:
        heldout: reward by round, of the policy before it learned in that round; NaN in rounds that
            did not evaluate.
        own: own groups by round that teach.
        places, authors, values: round, author and usefulness of each author's groups in a round,
            the first two as numbers from 0 up.
    """

    heldout: NDArray[np.float64]
    own: NDArray[np.float64]
    places: NDArray[np.intp]
    authors: NDArray[np.intp]
    values: NDArray[np.float64]


def usefulness(learned: Learned, asked: Sequence[int]) -> list[Usefulness] | None:
    """Of each author that is asked for; None where too little was evaluated."""
    looks = np.flatnonzero(~np.isnan(learned.heldout))
    if len(looks) <= LEAST:
        return None
    changes = np.diff(learned.heldout[looks])
    count = len(changes)
    # of each round the change that came of it; rounds before the first and behind the last: none
    change = np.searchsorted(looks, np.arange(len(learned.heldout)), "right") - 1
    inside = change[learned.places]
    within = (inside >= 0) & (inside < count)
    values, inside, authors = learned.values[within], inside[within], learned.authors[within]
    own = (change >= 0) & (change < count)
    total = np.bincount(change[own], np.nan_to_num(learned.own[own]), minlength=count)
    total += np.bincount(inside, values, minlength=count)
    error = float(np.var(changes, ddof=1)) / 2.0

    def of(author: int) -> Usefulness:
        theirs = authors == author
        given = np.bincount(inside[theirs], values[theirs], minlength=count)
        share = np.divide(given, total, out=np.zeros(count), where=total > 0)
        gain = float(share @ changes)
        steps = np.diff(share, prepend=0.0, append=0.0)
        spread = NORMAL_95 * float(np.sqrt(error * (steps @ steps)))
        return Usefulness(gain, gain - spread, gain + spread)

    return [of(author) for author in asked]


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
