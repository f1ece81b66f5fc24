"""The checkpoints of a run folder as users list and choose them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from node.errors import NodeError, UsageError
from node.storage.checkpoints import STATE, Checkpoints, Loaded
from node.storage.run_folder import RunFolder
from protocol.manifest import swarm_id


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A listed checkpoint, whose files are not verified."""

    round: int  # rounds done when it was written, which names it
    policy_step: int | None  # optimizer steps by then; None if its state cannot be read
    reward: float | None  # mean held-out reward; None if it was not evaluated
    swarm: str  # id in hex of the swarm that the reward was measured in; empty without one
    bytes: int  # total size of its files
    age_s: float
    path: str
    rolled_back: bool  # whether the run was rolled back to an earlier one
    best: bool = False  # has its swarm's highest reward; of equals the latest not rolled back

    def load(self) -> Loaded:
        """Load and verify the checkpoint; raise CheckpointError if it is damaged."""
        return Checkpoints(Path(self.path).parent).load(self.round)


def list_checkpoints(checkpoints: Checkpoints) -> list[CheckpointEntry]:
    """List every checkpoint, the oldest first; those rolled back come last."""
    with checkpoints.reading():
        found = [
            _entry(where, step, rewards.get(step), rolled_back=where is not checkpoints)
            for where in (checkpoints, checkpoints.rolled_back())
            for rewards in (where.rewards.read(),)
            for step in where.steps()
        ]
    best: dict[str, CheckpointEntry] = {}
    for entry in sorted(found, key=lambda each: not each.rolled_back):
        if entry.reward is not None and entry.reward >= (best.get(entry.swarm, entry).reward or 0):
            best[entry.swarm] = entry
    return [replace(entry, best=entry in best.values()) for entry in found]


def _entry(
    where: Checkpoints, step: int, rated: tuple[str, float] | None, *, rolled_back: bool
) -> CheckpointEntry:
    path = where.path(step)
    swarm, reward = rated or ("", None)
    return CheckpointEntry(
        round=step,
        policy_step=_policy_step(path),
        reward=reward,
        swarm=swarm,
        bytes=sum(each.stat().st_size for each in path.rglob("*") if each.is_file()),
        age_s=max(0.0, time.time() - path.stat().st_mtime),
        path=str(path),
        rolled_back=rolled_back,
    )


def of_step(entries: Sequence[CheckpointEntry], step: int) -> CheckpointEntry:
    """Return the checkpoint after ``step`` policy steps, or raise UsageError."""
    for entry in entries:
        if entry.policy_step == step:
            return entry
    there = ", ".join(f"{e.policy_step} (round {e.round})" for e in entries) or "none yet"
    raise UsageError("--step", step, f"No checkpoint is of that policy step; there are: {there}.")


def of_round(entries: Sequence[CheckpointEntry], number: int) -> CheckpointEntry:
    """Return the checkpoint after ``number`` rounds, or raise UsageError."""
    for entry in entries:
        if entry.round == number:
            return entry
    there = ", ".join(str(entry.round) for entry in entries) or "none yet"
    raise UsageError("--to", number, f"No checkpoint is of that round; there are: {there}.")


def best_of(entries: Sequence[CheckpointEntry], folder: RunFolder) -> CheckpointEntry:
    """Return the checkpoint of the best reward in this swarm, or raise UsageError."""
    swarm = swarm_id(folder.manifest.read_bytes()).hex() if folder.manifest.exists() else ""
    for entry in entries:
        if entry.best and entry.swarm == swarm:
            return entry
    remedy = "No checkpoint here was evaluated in this swarm yet: schedule.eval_every says when."
    raise UsageError("the best checkpoint of", folder.root, remedy)


def no_checkpoint(folder: Path) -> NodeError:
    """Build the error for a folder without checkpoints."""
    remedy = "Let the node run until schedule.checkpoint_every rounds are done, or stop it."
    return NodeError("no checkpoint yet in", folder, remedy)


def _policy_step(path: Path) -> int | None:
    try:
        return int(json.loads((path / STATE).read_bytes())["policy_step"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
