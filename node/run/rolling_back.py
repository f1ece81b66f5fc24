"""A stopped node that is to go on from an earlier checkpoint."""

from __future__ import annotations

from node.config.running import ScheduleSection
from node.monitor.history import read_history
from node.storage.checkpoint_list import CheckpointEntry, best_of, list_checkpoints, of_round
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder


def roll_back(
    folder: RunFolder, schedule: ScheduleSection, to: str
) -> tuple[CheckpointEntry, list[int]]:
    """Make a checkpoint the newest: of round ``to``, or the ``"best"``.

    ``status`` shows that round as the last one. What the journal remembers of later updates is
    struck when the node starts. Groups that they were made of stay used, and draws and sequence
    numbers go on.

    Returns:
        The checkpoint, and the rounds of those set aside.

    Raises:
        RunFolderBusy: the node runs.
        UsageError: there is no such checkpoint.
        CheckpointError: it is damaged.
    """
    checkpoints = Checkpoints(folder.checkpoints, schedule.keep_checkpoints, schedule.keep_best)
    with folder.locked():
        entries = list_checkpoints(checkpoints)
        entry = best_of(entries, folder) if to == "best" else of_round(entries, int(to))
        later = checkpoints.roll_back(entry.round)
        if folder.status.exists():
            done = [r.to_dict() for r in read_history(folder.root) if r.round <= entry.round]
            folder.write_status({**folder.read_status(), "record": done[-1] if done else None})
        return entry, later
