"""Whether a node learns: a short assessment of its held-out rewards and its local groups."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from node.config.sections import ScheduleSection
from node.dashboard.rounds import Rounds
from node.monitor.record import percent
from swarm.common.util import counted

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
    recent = rounds.column("informative_own")[-RECENT:]
    if len(recent) == RECENT and not np.isnan(recent).all():
        share = float(np.nanmean(recent))
        text += LOW.format(percent(share)) if share < LOW_INFORMATIVE else ""
    return {"level": level, "text": text}


def _change(known: NDArray[np.float64], schedule: ScheduleSection) -> tuple[Level, str]:
    if len(known) < 2:
        every = counted(schedule.eval_every, "round")
        return "early", (
            "Too early to say: two measurements of the held-out reward are compared, and one is "
            f"made every {every}."
        )
    latest = known[-max(1, len(known) // 3) :]
    before, now, tasks = float(known[0]), float(latest.mean()), schedule.eval_tasks
    p = (tasks * (before + now) / 2 + 1) / (tasks + 2)  # Laplace: never quite 0 or 1
    chance = Z * math.sqrt(p * (1 - p) / tasks * (1 + 1 / len(latest)))
    change = f"held-out reward {before:.2f} → {now:.2f} since the start"
    if now - before > chance:
        return "better", f"The node learns: {change}."
    if before - now > chance:
        return "worse", (
            f"The node got worse: {change}. Go back with swarm-node rollback, and lower learner.lr "
            "or raise mixture.local."
        )
    return "unclear", f"No clear change: {change}; chance alone explains ±{chance:.2f}."
