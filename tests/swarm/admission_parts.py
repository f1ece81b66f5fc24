"""An admission that gets real frames, and a verifier for sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.virtual_clock import VirtualClock
from protocol.announcement import epoch_of, task_seed
from protocol.frame import seal
from protocol.identity import Identity
from protocol.manifest import EnvSpec, sign_manifest, swarm_id
from protocol.rollout import Batch, Group
from swarm.admission import Admission, RefusedGroups
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.journal import Journal
from swarm.reputation import Accounts
from swarm.verification import GroupVerifier, Scores, VerifierError
from tests.swarm.experience_parts import START, group
from tests.swarm.network_parts import CREATOR, EPOCH_SECONDS, manifest

ENV = EnvSpec("sum", "plugin", "1", ("{}", '{"digits":2}'), "{question}", "text")
NOW = epoch_of(START, EPOCH_SECONDS)


def right_answer(seed: int) -> str:
    return str(seed % 90 + 1)


class SumVerifier(GroupVerifier):
    """Scores sums; refuses, fails or gives other rewards if a text requests it."""

    def __init__(self) -> None:
        self.calls = 0

    def verify(self, task: TaskRef, texts: Sequence[str], *, seconds=None) -> Scores:
        self.calls += 1
        for text in texts:
            if text.startswith("refuse:"):
                raise VerifierError(text.removeprefix("refuse:"))
            if text == "bug":
                raise ZeroDivisionError
            if text.startswith("rewards:"):
                return Scores("?", (float(text.removeprefix("rewards:")),) * len(texts))
        rewards = tuple(float(text == right_answer(task.seed)) for text in texts)
        return Scores(f"{task.seed % 90} + 1", rewards)


class Peer:
    """An author that writes groups and seals frames, with true claims by default."""

    def __init__(self, gate: Gate, identity: Identity | None = None) -> None:
        self.identity = identity or Identity.generate()
        self._gate = gate

    @property
    def author(self) -> bytes:
        return self.identity.author

    def group(self, index, texts=("right", "wrong"), *, epoch=NOW, claims=(), level=0) -> Group:
        """Make a group with true claims; ``right`` stands for the right answer."""
        answer = right_answer(task_seed(self.author, epoch, index))
        texts = [answer if text == "right" else text for text in texts]
        claims = claims or [float(text == answer) for text in texts]
        options = {"epoch": epoch, "env": "sum", "level": level, "texts": texts}
        return group(index, claims, tokens=False, **options)

    def frame(self, *groups: Group, sequence: int = 1, swarm: bytes | None = None) -> bytes:
        """Seal the groups; each sequence number gives a different frame."""
        batch = Batch(sequence, 5, START, "tiny", b"\x02" * 32, 1.0, 16, groups)
        return seal(batch, self.identity, swarm or self._gate.swarm_id)


class Gate:
    """A node's admission; ``agreed`` are changes to the manifest."""

    def __init__(
        self,
        path: Path | str = ":memory:",
        *,
        verifier: SumVerifier | None = None,
        **agreed: object,
    ) -> None:
        self.clock = VirtualClock(START)
        self.counters = Counters()
        self.verifier = verifier or SumVerifier()
        self.shown = RefusedGroups()
        limits = {"max_groups_per_epoch": 32, "max_age_epochs": 5}
        self.manifest = manifest(**{"catalogue": (ENV,), **limits, **agreed})
        self.swarm_id = swarm_id(sign_manifest(self.manifest, CREATOR))
        self.open(Journal(path, self.clock))

    def open(self, journal: Journal) -> None:
        """Use another journal, as after a restart."""
        self.journal = journal
        self.accounts = Accounts(journal, self.clock)
        parts = self.manifest, self.swarm_id, self.verifier, self.accounts, journal, self.clock
        self.admission = Admission(*parts, self.counters, shown=self.shown)

    def admit(self, frame: bytes, author: bytes) -> list[int]:
        return [g.group.index for g in self.admission.examine(frame, author)]

    def refused(self) -> dict[str, int]:
        return {
            name.removeprefix("refused{reason=").rstrip("}"): int(total)
            for name, total in self.counters.snapshot().items()
            if name.startswith("refused")
        }
