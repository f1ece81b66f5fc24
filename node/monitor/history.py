"""What a run folder tells of its rounds, from the first to the last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from node.errors import NodeError
from node.monitor.growing_lines import GrowingLines
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder


def read_history(folder: Path) -> list[RoundRecord]:
    """The records of a run, one a round, in the order of rounds; empty where there are none.

    Older rounds are thinned (:mod:`node.monitor.thinning`). Of rounds that were lost in a crash
    and done again the later record counts. The node may be running.

    Args:
        folder: the run folder.

    Raises:
        NodeError: a line is no record, or the file may not be read.
    """
    history: list[RoundRecord] = []
    for record in read_records(folder):
        while history and history[-1].round >= record.round:
            history.pop()
        history.append(record)
    return history


def read_records(folder: Path) -> list[RoundRecord]:
    """Every record of a run folder as it was written, lost rounds with those done in their place.

    Raises:
        NodeError: a line is no record, or the file may not be read.
    """
    return [record for path in files(RunFolder(folder).metrics) for record in _records(path)]


def files(metrics: Path) -> list[Path]:
    """Where records stand, the earlier ones first: releases before this one left a second file."""
    return [path for path in (metrics.with_name(f"{metrics.name}.1"), metrics) if path.exists()]


def parsed(line: bytes) -> RoundRecord:
    """The record of one line.

    Raises:
        ValueError: it is none.
    """
    try:
        return RoundRecord.from_dict(json.loads(line))
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a record") from error


def _records(path: Path) -> Iterator[RoundRecord]:
    lines, _ = GrowingLines().new([path])
    for number, line in enumerate(lines, 1):
        try:
            yield parsed(line)
        except ValueError as error:
            raise NodeError(
                f"line {number} is no record of a round",
                path,
                "Take that line out: the others stand for themselves.",
            ) from error
