"""Recompute from the served frames alone what a node may have trained on.

The protocol's code opens every frame that left a peer, and the test's own verifier checks every
group in it. The node's journal is then compared with the result.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from node.tasks.verifier.verifier import Verifier
from protocol.announcement import epoch_of, task_seed
from protocol.errors import BadKey, BadSignature, ProtocolError
from protocol.frame import open_frame
from protocol.rollout import Group, Writer, encode_group
from swarm.groups import TaskRef, unpack_pooled
from swarm.verification import VerifierError
from tests.hostile.behaviour import NodeView
from tests.hostile.peer import Served, Terms

TOLERANCE = 1e-3
AHEAD_EPOCHS = 1
Key = tuple[bytes, int, int]
"""Author, time slot and sample index."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """One version of a task sample that may be used for training.

    Attributes:
        group: the served group, whose rewards match the test's own verifier.
        prompt: as that verifier rebuilt it.
    """

    group: Group
    prompt: str


def digest(group: Group) -> bytes:
    return sha256(encode_group(group)).digest()[:16]


class Recomputation:
    """Allowed groups by task sample and digest.

    Attributes:
        forgers: authors of a frame with another author's name or a false signature.
    """

    def __init__(self, terms: Terms, frames: Iterable[Served]) -> None:
        self._terms = terms
        self.forgers: set[bytes] = set()
        self.allowed: defaultdict[Key, dict[bytes, Allowed]] = defaultdict(dict)
        with Verifier(terms.manifest.catalogue, {}, outside=True) as verifier:
            for served in {(s.author, s.frame): s for s in frames}.values():
                for group in self._groups(served):
                    self._verify(verifier, served.author, group)
        for key in [key for key in self.allowed if key[0] in self.forgers]:
            del self.allowed[key]

    def _groups(self, served: Served) -> tuple[Group, ...]:
        """Return the timely groups of an authentic frame that only the policy wrote."""
        try:
            opened = open_frame(served.frame, self._terms.swarm, self._terms.manifest)
        except ProtocolError as error:
            if isinstance(error, (BadSignature, BadKey)):
                self.forgers.add(served.author)
            return ()
        if opened.author != served.author:
            self.forgers.add(served.author)
            return ()
        epoch = epoch_of(served.at, self._terms.manifest.epoch_seconds)
        oldest = epoch - self._terms.manifest.max_age_epochs - AHEAD_EPOCHS
        return tuple(
            group
            for group in opened.batch.groups
            if oldest <= group.epoch <= epoch + 2 * AHEAD_EPOCHS
            and all([s.writer for s in c.segments] == [Writer.POLICY] for c in group.completions)
        )

    def _verify(self, verifier: Verifier, author: bytes, group: Group) -> None:
        seed = task_seed(author, group.epoch, group.index)
        texts = [completion.text for completion in group.completions]
        try:
            verdict = verifier.verify(TaskRef(group.env, group.level, seed), texts)
        except VerifierError:
            return
        if _close(group.rewards, verdict.rewards):
            key = author, group.epoch, group.index
            self.allowed[key][digest(group)] = Allowed(group, verdict.prompt)

    def authors(self) -> set[bytes]:
        return {author for author, _, _ in self.allowed}

    def faults(self, node: NodeView) -> list[str]:
        """Return impossible entries of the node's journal and records."""
        used = node.rows("SELECT author, epoch, number, step, trained FROM used WHERE author!=x''")
        seen = {tuple(row[:3]): row[3] for row in node.rows("SELECT * FROM seen")}
        faults = [
            f"{author.hex()[:8]} {epoch}/{number} was learned from"
            for author, epoch, number, _, _ in used
            if seen.get((author, epoch, number)) not in self.allowed[author, epoch, number]
        ]
        counts = Counter((author, epoch, number) for author, epoch, number, _, _ in used)
        faults += [
            f"{author.hex()[:8]} {epoch}/{number} was learned from {n} times"
            for (author, epoch, number), n in counts.items()
            if n > 1
        ]
        trained = sum(row[4] for row in used)
        lines = (node.folder / "metrics.jsonl").read_text().splitlines()
        told = sum(json.loads(line)["groups_external"] for line in lines)
        if trained != told:
            faults.append(f"the journal knows of {trained} external groups, the records of {told}")
        return faults + self._pool_faults(node)

    def _pool_faults(self, node: NodeView) -> list[str]:
        """Return replay buffer entries that match no allowed version up to rounding."""
        faults = []
        rows = node.rows("SELECT author, epoch, number, received, contents FROM pool")
        for author, epoch, number, received, contents in rows:
            held = unpack_pooled(author, received, contents)
            versions = self.allowed[author, epoch, number].values()
            if not any(_same(held.group, each.group) for each in versions):
                faults.append(f"{author.hex()[:8]} {epoch}/{number} is pooled")
            elif all(held.prompt != each.prompt for each in versions):
                faults.append(f"{author.hex()[:8]} {epoch}/{number} has another prompt")
        return faults


def _same(held: Group, told: Group) -> bool:
    """Return whether two groups differ only by the rounding of their rewards."""
    one, other = (
        (g.env, g.level, g.epoch, g.index, [c.text for c in g.completions]) for g in (held, told)
    )
    return one == other and _close(held.rewards, told.rewards)


def _close(claimed: Sequence[float], own: Sequence[float]) -> bool:
    return all(abs(a - b) <= TOLERANCE for a, b in zip(claimed, own, strict=True))
