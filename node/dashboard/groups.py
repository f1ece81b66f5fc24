"""Groups, authors and progress of a run: search, statistics per author, an assessment."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from node.config.sections import ScheduleSection
from node.dashboard.rounds import Floats, Rounds
from node.monitor.history import GrowingLines
from node.monitor.record import percent
from node.storage.atomic_files import DAMAGES
from node.storage.run_folder import PROFILE_KEYS
from protocol.errors import BadKey
from protocol.identity import check_key, peer_id_of
from swarm.common.util import counted, t95
from swarm.reputation import Account, is_banned, penalties_now, reputation_now

MAX_GROUPS = 100  # per response
# A line without these keys is not a group.
NAMES = {"id", "round", "origin", "env", "author", "prompt", "in_update", "reason", "completions"}
TOKEN_COLUMNS = ("text", "logprob", "version", "entropy")
BYTES = 2 << 20  # maximum bytes of the lines in a response, except the first


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of groups; empty values and None match all."""

    limit: int = 20
    before: int | None = None  # exclusive upper bound of the group number
    origin: str = ""
    env: str = ""
    author: str = ""  # prefix of the public key, in hex
    text: str = ""  # in the question or an answer, ignoring case
    taught: bool | None = None  # whether an update learned from it
    round: int | None = None  # the round after which it was shown

    def takes(self, group: dict[str, Any]) -> bool:
        taught = bool(group["in_update"] and group["reason"] is None)
        needle = self.text.casefold()
        texts = (group["prompt"], *(completion["text"] for completion in group["completions"]))
        return (
            (self.before is None or group["id"] < self.before)
            and self.origin in ("", group["origin"])
            and self.env in ("", group["env"])
            and (group["author"] or "").startswith(self.author.lower())
            and self.taught in (None, taught)
            and self.round in (None, group["round"])
            and (not needle or any(needle in each.casefold() for each in texts))
        )


class Groups:
    """The groups in ``groups.jsonl``, whose lines are held in memory; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = GrowingLines(path)
        self._lines: list[bytes] = []
        self.last = 0  # number of the newest group

    def look(self) -> None:
        """Read new lines; raise NodeError if the file cannot be read."""
        lines, replaced = self._file.new()
        if replaced:
            self._lines = []
        count = len(self._lines)
        self._lines.extend(lines)
        for line in reversed(self._lines[count:]):
            if (group := _parsed(line)) is not None:
                self.last = group["id"]
                return

    def find(self, wanted: Wanted) -> dict[str, Any]:
        """Return the newest matching groups, and whether there are more."""
        groups: list[dict[str, Any]] = []
        size = 0
        for line in reversed(self._lines):
            try:
                group = _parsed(line)
                if group is None or not wanted.takes(group):
                    continue
                for completion in group["completions"]:
                    columns = completion.get("tokens") or {}
                    rows = zip_longest(*(columns.get(name, ()) for name in TOKEN_COLUMNS))
                    completion["tokens"] = [dict(zip(TOKEN_COLUMNS, r, strict=True)) for r in rows]
            except DAMAGES:
                continue
            if len(groups) == wanted.limit or (groups and size + len(line) > BYTES):
                return {"groups": groups, "more": True}
            size += len(line)
            groups.append(group)
        return {"groups": groups, "more": False}


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        group = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_group = isinstance(group, dict) and group.keys() >= NAMES and type(group["id"]) is int
    return group if is_group else None


LEAST = 4  # minimum number of changes of the held-out reward for an estimate


@dataclass(frozen=True, slots=True)
class Usefulness:
    """A gain of held-out reward with its 95 % confidence interval."""

    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Learned:
    """Groups that each round learned from: local ones, and one entry per round and peer author."""

    heldout: Floats  # reward by round, before its update; NaN if not evaluated
    own: Floats  # informative local groups by round
    places: NDArray[np.intp]  # index of each entry's round, from 0
    authors: NDArray[np.intp]  # index of its author, from 0
    values: Floats  # usefulness of this author's groups in this round


def usefulness(learned: Learned, asked: Sequence[int]) -> list[Usefulness] | None:
    """Estimate each author's gain of held-out reward; None below ``LEAST`` changes.

    A change between two evaluations is divided among the rounds' groups: in proportion to the
    usefulness of peers' groups and to the number of informative local ones.
    """
    eval_rounds = np.flatnonzero(~np.isnan(learned.heldout))
    if len(eval_rounds) <= LEAST:
        return None
    changes = np.diff(learned.heldout[eval_rounds])
    # The change that each round contributed to; out of range before the first evaluation and after
    # the last.
    change = np.searchsorted(eval_rounds, np.arange(len(learned.heldout)), "right") - 1
    entry_change = change[learned.places]
    total = _by_change(change, np.nan_to_num(learned.own), len(changes))
    total += _by_change(entry_change, learned.values, len(changes))
    gains = []
    for author in asked:
        mask = learned.authors == author
        credit = _by_change(entry_change[mask], learned.values[mask], len(changes))
        share = np.divide(credit, total, out=np.zeros(len(changes)), where=total > 0)
        gains.append(_gain(changes, share))
    return gains


def _by_change(change: NDArray[np.intp], values: Floats, count: int) -> Floats:
    """Sum the values of each change; those outside of all changes do not count."""
    inside = (change >= 0) & (change < count)
    return np.asarray(np.bincount(change[inside], values[inside], minlength=count), np.float64)


def _gain(changes: Floats, share: Floats) -> Usefulness:
    gain = float(share @ changes)
    # Consecutive changes have an evaluation in common, whose error counts by the difference of
    # their shares. A change has the errors of two evaluations.
    error = float(np.var(changes, ddof=1)) / 2.0
    weights = np.diff(share, prepend=0.0, append=0.0)
    margin = t95(len(changes) - 1) * float(np.sqrt(error * (weights @ weights)))
    return Usefulness(gain, gain - margin, gain + margin)


MAX_AUTHORS = 200  # per response: those with most groups in updates, then with most admitted


def authors(
    rounds: Rounds, accounts: Sequence[Account], peers: Sequence[Mapping[str, Any]], now: float
) -> list[dict[str, Any]]:
    """Describe each author with an account or groups in updates, the most used first.

    ``peers`` are those of the status, with their claims about themselves; ``now`` is unix time.
    """
    by_id = {peer["peer_id"]: peer for peer in peers}
    by_key = {account.author.hex(): account for account in accounts}
    totals = rounds.named["authors"].totals(rounds.column("round"), rounds.weights())
    counts = {**dict.fromkeys(by_key, 0.0), **totals}
    admitted = {name: account.admitted for name, account in by_key.items()}
    names = sorted(counts, key=lambda name: (-counts[name], -admitted.get(name, 0), name))
    names = names[:MAX_AUTHORS]
    groups = rounds.column("groups_local") + rounds.column("groups_external")
    all_groups = float(groups @ rounds.weights()) if len(groups) else 0.0
    gains = _gains(rounds, names)
    return [
        {
            "author": name,
            "peer_id": (peer_id := _peer_id(name)),
            **{key: by_id.get(peer_id, {}).get(key) for key in PROFILE_KEYS},
            "used": round(counts[name]),
            "share": counts[name] / all_groups if all_groups else 0.0,
            "usefulness": gains.get(name),
            **_account(by_key.get(name), now),
        }
        for name in names
    ]


def _gains(rounds: Rounds, names: Sequence[str]) -> dict[str, dict[str, float]]:
    numbers, weights, useful = rounds.column("round"), rounds.weights(), rounds.named["useful"]
    indices, author_ids = useful.rows(numbers)
    selected = {name: useful.numbers[name] for name in names if name in useful.numbers}
    learned = Learned(
        heldout=rounds.column("reward_eval"),
        own=rounds.column("groups_local") * rounds.column("informative_local") * weights,
        places=indices,
        authors=author_ids,
        values=useful.values * weights[indices],
    )
    gains = usefulness(learned, list(selected.values()))
    return {} if gains is None else dict(zip(selected, map(asdict, gains), strict=True))


def _account(account: Account | None, now: float) -> dict[str, Any]:
    if account is None:
        empty = {"admitted": 0, "refused": {}, "standing": None, "strikes": 0}
        return {**empty, "banned": False, "seen": None}
    return {
        "admitted": account.admitted,
        "refused": dict(account.refused),
        "standing": reputation_now(account, now),
        "strikes": penalties_now(account, now),
        "banned": is_banned(account, now),
        "seen": account.touched or None,
    }


def _peer_id(author: str) -> str | None:
    try:
        raw = bytes.fromhex(author)
        check_key(raw)
    except (ValueError, BadKey):
        return None
    return peer_id_of(raw)


RECENT = 20  # rounds whose local groups are looked at
LOW_INFORMATIVE = 0.05  # fraction of groups
LOW = (
    f" In the last {RECENT} rounds rewards differed in only {{}} of local groups, so they teach "
    "little: choose other levels with tasks.levels, or see docs/starter.md for a warm start."
)
Z = 2.58  # standard errors: 99 %, as the comparison is repeated with each evaluation

Level = Literal["better", "worse", "unclear", "early"]


def progress(rounds: Rounds, schedule: ScheduleSection) -> dict[str, Any]:
    """Return ``level``, one of :data:`Level`, and ``text``, what to tell the user.

    The first held-out reward, from before any update, is compared with the mean of the latest
    third. Rewards are in [0, 1], so the variance of one is at most ``p (1 - p)``. The records do
    not say which tasks were evaluated: if they changed, the comparison is of different tasks.
    """
    heldout = rounds.column("reward_eval")
    level, text = _change(heldout[~np.isnan(heldout)], schedule)
    recent = rounds.column("informative_local")[-RECENT:]
    if len(recent) == RECENT and not np.isnan(recent).all():
        share = float(np.nanmean(recent))
        text += LOW.format(percent(share)) if share < LOW_INFORMATIVE else ""
    return {"level": level, "text": text}


def _change(rewards: Floats, schedule: ScheduleSection) -> tuple[Level, str]:
    if len(rewards) < 2:
        interval = counted(schedule.eval_every, "round")
        return "early", (
            "Too early to say: this compares two evaluations of the held-out reward, one every "
            f"{interval}."
        )
    latest = rewards[-max(1, len(rewards) // 3) :]
    start, current, tasks = float(rewards[0]), float(latest.mean()), schedule.eval_tasks
    p = (tasks * (start + current) / 2 + 1) / (tasks + 2)  # Laplace: never quite 0 or 1
    margin = Z * math.sqrt(p * (1 - p) / tasks * (1 + 1 / len(latest)))
    change = f"held-out reward {start:.2f} → {current:.2f} since the start"
    if current - start > margin:
        return "better", f"The node learns: {change}."
    if start - current > margin:
        return "worse", (
            f"The held-out reward fell: {change}. Roll back with swarm-node rollback, and "
            "decrease learner.lr or increase mixture.local."
        )
    return "unclear", f"No clear change: {change}; within noise (±{margin:.2f})."
