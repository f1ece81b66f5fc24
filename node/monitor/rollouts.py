"""The last rollouts of a node, for people to read."""

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

KEPT = 24
"""Rollouts that a node keeps to be shown."""
LONGEST = 4000
"""Characters of a prompt or a completion that are kept."""


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """One completion of the policy's or of a peer's, as the node judged it.

    Attributes:
        round: in whose update it was.
        env: task family.
        level: index into its levels.
        prompt: the question, before any chat template.
        completion: what was answered; of long texts the middle is left out.
        reward: this node's own verdict, 0 to 1.
        cut: whether the length cap ended it.
        author: peer id of who wrote it; ``None`` for this node.
    """

    round: int
    env: str
    level: int
    prompt: str
    completion: str
    reward: float
    cut: bool
    author: str | None = None


class LastRollouts:
    """Keeps the newest rollouts; written and read by several threads."""

    def __init__(self) -> None:
        self._kept: deque[ShownRollout] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, rollouts: Sequence[ShownRollout]) -> None:
        """Keep these, the newest last, and let go of as many old ones."""
        with self._lock:
            self._kept.extend(rollouts)

    def all(self) -> list[ShownRollout]:
        """What is kept, the newest last."""
        with self._lock:
            return list(self._kept)


def shortened(text: str, most: int) -> str:
    """The text, or its two ends in ``most`` characters with a mark of what is missing between."""
    if len(text) <= most:
        return text
    left_out = f" … ({len(text)} characters) … "
    room = max(most - len(left_out), 2)
    end = room // 2
    return f"{text[: room - end]}{left_out}{text[-end:]}"


SECONDS = 1.0
"""Between two writes: some rounds take a hundredth of that."""


class RolloutsFile:
    """A sink that replaces the file after a round, and at the end.

    Args:
        rollouts: what is written.
        now: seconds of a clock that only goes forward.
    """

    def __init__(
        self, path: Path, rollouts: LastRollouts, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._rollouts = rollouts
        self._now = now
        self._written = float("-inf")
        self._behind = False

    def write(self, record: RoundRecord) -> None:
        """Write what is kept, unless that was done a moment ago.

        Raises:
            NodeError: it cannot be written.
        """
        self._behind = True
        if self._now() - self._written >= SECONDS:
            self._replace()

    def close(self) -> None:
        """Write what the last rounds brought."""
        if self._behind:
            self._replace()

    def _replace(self) -> None:
        self._written = self._now()
        lines = [json.dumps(asdict(rollout)) + "\n" for rollout in self._rollouts.all()]
        write_atomic(self._path, "".join(lines).encode(), durable=False)
        self._behind = False


def read_rollouts(path: Path) -> list[ShownRollout]:
    """The rollouts of a node that runs or has run, the newest last.

    Raises:
        NodeError: there is no such file, or it is not one of ours.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [ShownRollout(**json.loads(line)) for line in lines]
    except FileNotFoundError:
        raise NodeError(
            "no rollouts yet in", path.parent, "A node keeps some from its first round on."
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        remedy = "Delete it; a running node writes it anew."
        raise NodeError("not a file of rollouts", path, remedy) from error


AUTHOR_CHARACTERS = 16
"""Of a peer id, whose first eight are the same in all."""
LINES = 4
"""That one rollout takes in a panel."""


def heading(rollout: ShownRollout) -> str:
    """What is known of a rollout beside its texts, in one line."""
    author = f"external by {rollout.author[:AUTHOR_CHARACTERS]}…" if rollout.author else "own"
    cut = ", cut" if rollout.cut else ""
    task = f"{rollout.env} level {rollout.level}"
    return printable(
        f"round {rollout.round}, {author}, {task}, reward {share(rollout.reward)}{cut}"
    )


def in_full(rollouts: Sequence[ShownRollout]) -> RenderableType:
    """All of their texts. Every line of them is set in, so that none passes for a heading."""
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
    """As many as fit into so many columns and lines, the newest first, each text in one line."""
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
