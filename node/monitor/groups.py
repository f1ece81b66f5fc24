"""Groups and rollouts in the form that people read: buffer, files and display."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from node.errors import NodeError
from node.monitor.output import printable, printable_lines
from node.monitor.record import RoundRecord, rounded, share
from node.storage.atomic_files import DAMAGES, append_whole, replacing, writing
from node.threads import WorkThread
from protocol.identity import peer_id_of
from protocol.rollout import Segment, Writer
from swarm.common.util import make_private

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
    truncated: bool  # whether the length cap truncated it
    author: str | None = None  # peer id; None for this node


def shortened(text: str, most: int) -> str:
    """Return the text, or its two ends with a mark between, in ``most`` characters."""
    if len(text) <= most:
        return text
    mark = f" … ({len(text)} characters) … "
    budget = max(most - len(mark), 2)
    end = budget // 2
    return f"{text[: budget - end]}{mark}{text[-end:]}"


def read_rollouts(path: Path) -> list[ShownRollout]:
    """Return the worst and best completion of a round's first groups, newest round last.

    ``path`` is the file of groups; of each round and origin, an informative group is shown if there
    is one. Raises NodeError if no group was used yet or the file is damaged.
    """
    rollouts: list[ShownRollout] = []
    try:
        for _, groups in groupby(map(json.loads, _lines(path)), itemgetter("round")):
            chosen: dict[str, dict[str, Any]] = {}  # by origin
            for group in groups:
                known = chosen.get(group["origin"])
                if group["in_update"] and (not known or (known["reason"] and not group["reason"])):
                    chosen[group["origin"]] = group
            rollouts += [rollout for group in chosen.values() for rollout in _ends(group)]
    except DAMAGES as error:
        raise NodeError("not a file of groups", path, "Delete it, and start the node.") from error
    if not rollouts:
        remedy = "A node writes some after its first round."
        raise NodeError("no rollouts yet in", path.parent, remedy)
    return rollouts


def _ends(group: Mapping[str, Any]) -> Iterator[ShownRollout]:
    rows = sorted(group["completions"], key=itemgetter("reward"))
    author = group["author"] and peer_id_of(bytes.fromhex(group["author"]))
    for row in (rows[0], rows[-1])[: 1 + (rows[0]["reward"] < rows[-1]["reward"])]:
        yield ShownRollout(
            round=group["round"],
            env=group["env"],
            level=group["level"],
            prompt=group["prompt"],
            completion=row["text"],
            reward=row["reward"],
            truncated=row["finish"] == "length",
            author=author,
        )


AUTHOR_CHARACTERS = 16  # of a peer id; the first eight are the same in all


def heading(rollout: ShownRollout) -> str:
    """Describe a rollout's origin, task and reward in one line."""
    author = f"by peer {rollout.author[:AUTHOR_CHARACTERS]}…" if rollout.author else "local"
    task = f"{rollout.env} level {rollout.level}"
    reward = f"reward {share(rollout.reward)}{', truncated' if rollout.truncated else ''}"
    return printable(f"round {rollout.round}, {author}, {task}, {reward}")


def in_full(rollouts: Sequence[ShownRollout]) -> RenderableType:
    """Render all texts of the rollouts, indented so that no line looks like a heading."""
    parts: list[RenderableType] = []
    for rollout in rollouts:
        labels = Column(style="dim", no_wrap=True)
        table = Table.grid(labels, Column(overflow="fold"), padding=(0, 2))
        table.add_row("  prompt", Text(printable_lines(rollout.prompt)))
        table.add_row("  completion", Text(printable_lines(rollout.completion)))
        parts += [Text(heading(rollout), "bold"), table]
    return Group(*parts)


Origin = Literal["own", "external", "refused"]
ORIGINS: tuple[Origin, ...] = ("own", "external", "refused")
MOST_ANSWERS = 16
MOST_TOKENS = 512  # per answer; a longer answer is shown without tokens
MAX_GROUP_BYTES = 64 << 10
SHORT = 400  # characters per text, if the line is too long otherwise


@dataclass(frozen=True, slots=True)
class ShownTokens:
    """An answer token by token; all non-empty fields have one length."""

    text: Sequence[str] = ()
    logprob: Sequence[float] = ()  # natural log of the sampling probability, as its author claims
    version: Sequence[int] = ()  # the author's policy step when sampling
    entropy: Sequence[float] = ()  # this policy's, before the update, nats; empty if not measured


@dataclass(frozen=True, slots=True)
class ShownCompletion:
    text: str
    reward: float | None  # this node's own verification result; None if there is none
    advantage: float | None  # relative to its group, even if a correction skips it; or None
    truncated: bool  # whether the length cap truncated it
    tokens: ShownTokens = ShownTokens()

    def to_dict(self, longest: int, *, tokens: bool) -> dict[str, Any]:
        """Convert to plain values for JSON; texts have at most ``longest`` characters."""
        columns = self.tokens if tokens and len(self.tokens.text) <= MOST_TOKENS else ShownTokens()
        return {
            "text": shortened(self.text, longest),
            "reward": rounded(self.reward),
            "advantage": rounded(self.advantage),
            "finish": "length" if self.truncated else "stop",
            "tokens": {
                "text": list(columns.text),
                "logprob": list(map(rounded, columns.logprob)),
                "version": list(columns.version),
                "entropy": list(map(rounded, columns.entropy)),
            },
        }


@dataclass(frozen=True, slots=True)
class ShownGroup:
    round: int  # after which it was shown
    time: float  # unix time, seconds
    origin: Origin
    env: str
    level: int
    author: str | None  # public key in hex; None for this node
    prompt: str  # before any chat template; empty if unknown
    in_update: bool  # whether an update used it
    reason: str | None  # sentence: why refused or not informative; None if informative
    completions: Sequence[ShownCompletion]

    def line(self, number: int) -> bytes:
        """Encode the group as one line of the file, with its number.

        A line above ``MAX_GROUP_BYTES`` loses the tokens first, then the middle of its texts.
        """
        for longest, tokens in ((LONGEST, True), (LONGEST, False)):
            line = self._line(number, longest, tokens=tokens)
            if len(line) <= MAX_GROUP_BYTES:
                return line
        return self._line(number, SHORT, tokens=False)

    def _line(self, number: int, longest: int, *, tokens: bool) -> bytes:
        completions = self.completions[:MOST_ANSWERS]
        values = {
            "id": number,
            "round": self.round,
            "time": round(self.time, 3),
            "origin": self.origin,
            "env": self.env,
            "level": self.level,
            "author": self.author,
            "prompt": shortened(self.prompt, longest),
            "in_update": self.in_update,
            "reason": self.reason,
            "completions": [each.to_dict(longest, tokens=tokens) for each in completions],
        }
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"


MAX_FILE_BYTES = 4 << 20
# Groups of each origin that stay when the file is full. All origins together keep at most half of
# the file's bytes.
KEPT_GROUPS = 70
GROUPS_SECONDS = 2.0  # minimum time between writes; some rounds take a hundredth of it


@dataclass(eq=False)
class GroupsFile:
    """A sink that appends groups on its own thread; each origin's newest groups stay."""

    path: Path
    latest: Callable[[], Sequence[ShownGroup]]
    most_bytes: int = MAX_FILE_BYTES
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._number: int | None = None
        self._written = float("-inf")
        self._thread = WorkThread("groups")
        self._work: Future[None] | None = None

    def write(self, record: RoundRecord) -> None:
        """Write the latest groups in the background; raise NodeError of an earlier write."""
        if self.now() - self._written < GROUPS_SECONDS or (self._work and not self._work.done()):
            return
        self._written = self.now()
        previous, groups = self._work, self.latest()
        self._work = self._thread.submit(lambda: self._append(groups))
        if previous:
            previous.result()

    def close(self) -> None:
        """Write all groups, also those since the last write; may be called twice."""
        previous, self._work = self._work, None
        self._thread.close()
        if previous:
            previous.result()
        if groups := self.latest():
            self._append(groups)

    def _append(self, groups: Sequence[ShownGroup]) -> None:
        with writing(self.path):
            if self._number is None:
                self._number = max((_number(line) for line in _lines(self.path)), default=0)
            data = b"".join(group.line(n) for n, group in enumerate(groups, self._number + 1))
            self._number += len(groups)
            size = self.path.stat().st_size if self.path.exists() else 0
            if size + len(data) > self.most_bytes:
                self._thin()
            with make_private(self.path).open("ab+", buffering=0) as file:
                if file.seek(0, os.SEEK_END):  # a killed process may have left a partial line
                    file.seek(-1, os.SEEK_END)
                    data = data if file.read(1) == b"\n" else b"\n" + data
                append_whole(file, data)

    def _thin(self) -> None:
        bytes_left = {origin: self.most_bytes // (2 * len(ORIGINS)) for origin in ORIGINS}
        count = dict.fromkeys(ORIGINS, KEPT_GROUPS)
        kept_lines: deque[bytes] = deque()
        for line in reversed(list(_lines(self.path))):
            origin = json.loads(line)["origin"]
            count[origin] -= 1
            bytes_left[origin] -= len(line)
            if count[origin] >= 0 and bytes_left[origin] >= 0:
                kept_lines.appendleft(line)
        with replacing(self.path, durable=False) as draft:
            draft.writelines(kept_lines)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the whole groups; a killed process may have left a partial line."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if _number(line):
                yield line


def _number(line: bytes) -> int:
    """Return the group's number; 0 if the line is not a group."""
    try:
        values = json.loads(line)
        is_group = line.endswith(b"\n") and values["origin"] in ORIGINS
        return int(values["id"]) if is_group else 0
    except DAMAGES:
        return 0


_BROKEN = "It is not what the protocol allows"
# Keys are the names of :mod:`swarm.verification`.
WORDS: Mapping[str, str] = {
    "bad_signature": "It is not signed by the author in its header.",
    "bad_key": "Its author's key is not a usable key.",
    "wrong_author": "Its author is not the peer that announced it.",
    "reward_mismatch": "This node's verifier computes other rewards than its author claims.",
    "equivocation": "Its author already published different answers for this task.",
    "offer_mismatch": "It does not match its author's announcement.",
    "protocol_error": f"{_BROKEN}.",
    "bad_magic": f"{_BROKEN}: it is not a frame.",
    "truncated": f"{_BROKEN}: it ends too early.",
    "trailing_bytes": f"{_BROKEN}: there are bytes after its end.",
    "too_large": f"{_BROKEN}: it is too large.",
    "too_deep": f"{_BROKEN}: it is nested too deeply.",
    "too_many_items": f"{_BROKEN}: it has too many parts.",
    "duplicate_key": f"{_BROKEN}: it has a key twice.",
    "bad_encoding": f"{_BROKEN}: its encoding is not canonical.",
    "bad_compression": f"{_BROKEN}: it cannot be unpacked.",
    "bad_schema": f"{_BROKEN}: a part is missing or has the wrong type.",
    "wrong_swarm": "It is of another swarm.",
    "wrong_shard": "It was announced under the wrong key.",
    "not_replayed": "Its environment, replayed here, answers differently.",
    "not_replayable": "Its environment is not replayable: it cannot be verified.",
    "unexpected_segments": "Its completions have parts that no family here has.",
    "wrong_content": "The received data is not the announced data.",
    "response_too_large": "The received data is larger than announced.",
    "timeout": "The verifier did not finish its completions in time.",
    "cpu_limit": "A completion used all of the verifier's CPU time.",
    "worker_lost": "The operating system ended the verifier.",
    "crashed": "The verifier crashed on its completions.",
    "too_slow": "Its author or the connection was too slow.",
    "stale_epoch": "It is too old.",
    "epoch_ahead": "It is from the future: its author's clock or this node's is wrong.",
    "before_restore": "It may have been used before this node's journal was restored.",
    "replay": "It was received before.",
    "expired": "Its announcement had expired.",
    "bad_lifetime": "Its announcement lasts longer than allowed.",
    "not_admitted": "Its author is not admitted to this swarm.",
    "banned": "Its author is banned here for earlier groups.",
    "unknown_env": "This node does not have this task family, or not this version or level.",
    "evaluates_text": "This family's verifier executes text of completions: not allowed here.",
    "unavailable": "The verifier was not available.",
    "abandoned": "Other groups of its frame used too much time of the verifier.",
    "over_budget": "The verification time for its author was used up.",
    "bad_result": "This node's verifier computed no valid rewards.",
    "verifier_failed": "This node's verifier failed.",
}


def in_words(reason: str) -> str:
    """Return a sentence for a refusal reason; an unknown reason is named."""
    return WORDS.get(reason, f"Refused: {reason}.")


ANSWERED = "» "  # marks text of the environment


def transcript(segments: Iterable[Segment]) -> str:
    """Join the policy's texts and, marked, the environment's texts between them."""
    return "\n".join(
        segment.text if segment.writer is Writer.POLICY else f"{ANSWERED}{segment.text}"
        for segment in segments
    )
