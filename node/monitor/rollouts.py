"""The last rollouts of a node, for people to read: buffer, file and display."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from node.errors import NodeError
from node.monitor.output import printable, printable_lines
from node.monitor.record import RoundRecord, share
from node.storage.atomic_files import write_atomic
from swarm.common.util import plain_json

KEPT = 24  # rollouts that a node keeps
LONGEST = 4000  # maximum characters of a stored prompt or completion


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """One completion of the policy or a peer, with its verification result."""

    round: int  # the round whose update used it
    env: str  # task family
    level: int  # index into the family's levels
    prompt: str  # before any chat template
    completion: str  # long texts lack the middle
    reward: float  # this node's own verification result, 0 to 1
    cut: bool  # whether the length cap truncated it
    author: str | None = None  # peer id; None for this node


class LastRollouts:
    """A thread-safe buffer of the newest rollouts."""

    def __init__(self) -> None:
        self._kept: deque[ShownRollout] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, rollouts: Sequence[ShownRollout]) -> None:
        """Add rollouts, the newest last, and drop the oldest."""
        with self._lock:
            self._kept.extend(rollouts)

    def all(self) -> list[ShownRollout]:
        with self._lock:
            return list(self._kept)


def shortened(text: str, most: int) -> str:
    """Return the text, or its two ends with a mark between, in ``most`` characters."""
    if len(text) <= most:
        return text
    left_out = f" … ({len(text)} characters) … "
    room = max(most - len(left_out), 2)
    end = room // 2
    return f"{text[: room - end]}{left_out}{text[-end:]}"


SECONDS = 1.0  # minimum time between writes; some rounds take a hundredth of it


class RolloutsFile:
    """A sink that replaces the file of rollouts after a round and at the end."""

    def __init__(
        self, path: Path, rollouts: LastRollouts, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._rollouts = rollouts
        self._now = now
        self._written = float("-inf")
        self._behind = False

    def write(self, record: RoundRecord) -> None:
        """Write the kept rollouts, at most every ``SECONDS``, or raise NodeError."""
        self._behind = True
        if self._now() - self._written >= SECONDS:
            self._replace()

    def close(self) -> None:
        if self._behind:
            self._replace()

    def _replace(self) -> None:
        self._written = self._now()
        lines = [plain_json(asdict(rollout)) + "\n" for rollout in self._rollouts.all()]
        write_atomic(self._path, "".join(lines).encode(), durable=False)
        self._behind = False


def read_rollouts(path: Path) -> list[ShownRollout]:
    """Read a node's rollouts, newest last; raise NodeError if there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [ShownRollout(**json.loads(line)) for line in lines]
    except FileNotFoundError:
        remedy = "A node keeps some from its first round on."
        raise NodeError("no rollouts yet in", path.parent, remedy) from None
    except (ValueError, TypeError, RecursionError) as error:
        remedy = "Delete it; a running node writes it anew."
        raise NodeError("not a file of rollouts", path, remedy) from error


AUTHOR_CHARACTERS = 16  # of a peer id; the first eight are the same in all
LINES = 4  # that one rollout takes in a panel


def heading(rollout: ShownRollout) -> str:
    """Describe a rollout's origin, task and reward in one line."""
    author = f"external by {rollout.author[:AUTHOR_CHARACTERS]}…" if rollout.author else "own"
    task = f"{rollout.env} level {rollout.level}"
    reward = f"reward {share(rollout.reward)}{', cut' if rollout.cut else ''}"
    return printable(f"round {rollout.round}, {author}, {task}, {reward}")


def in_full(rollouts: Sequence[ShownRollout]) -> RenderableType:
    """Render all texts of the rollouts, indented so that no line looks like a heading."""
    parts: list[RenderableType] = []
    for rollout in rollouts:
        texts = Table.grid(padding=(0, 2))
        texts.add_column(style="dim", no_wrap=True)
        texts.add_column(overflow="fold")
        texts.add_row("  prompt", Text(printable_lines(rollout.prompt)))
        texts.add_row("  completion", Text(printable_lines(rollout.completion)))
        parts += [Text(heading(rollout), "bold"), texts]
    return Group(*parts)


def in_lines(rollouts: Sequence[ShownRollout], width: int, height: int) -> RenderableType:
    """Render the newest rollouts that fit ``width`` and ``height``, one line per text."""
    if not rollouts:
        return Text("no round is done yet")
    room = width - len("completion") - 2
    newest = list(reversed(rollouts))[: max(1, height // LINES)]
    parts: list[RenderableType] = []
    for rollout in newest:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        for name, text in (("prompt", rollout.prompt), ("completion", rollout.completion)):
            rows.add_row(name, Text(shortened(printable(text), room)))
        title = Text(heading(rollout), "bold", no_wrap=True, overflow="ellipsis")
        parts += [title, rows, Text()]
    return Group(*parts[:-1])
