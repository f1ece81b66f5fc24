"""How an engine's process is started, and the weights that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from node.concurrency.cpu_threads import environment
from node.engines.backend import BackendSettings
from node.engines.process.child import MODULE, EngineChild
from node.engines.weight_snapshot import Snapshot
from node.errors import NodeError
from node.policy.policy import Policy

MAX_ROWS = 64


@dataclass(slots=True)
class Starter:
    """Starts processes for one engine, one after the other, each on the newest weights.

    Attributes:
        kind: of the engine, a name of :data:`node.config.kinds.ENGINES`.
        seed: of the draws, with the policy's version at the start.
        threads: CPU threads of a process.
        patience: seconds that it may be silent for while it has something to do.
        max_rows: completions written side by side.
        options: for the back-end of this kind alone.
        variables: of the process's environment, beside this one's.
        as_checkpoint: the weights are written as a folder that ``transformers`` loads.
        place: the parent of the snapshot's folder; see
            :class:`node.engines.weight_snapshot.Snapshot`.
        module: what the process runs.
        starts: processes so far.
    """

    kind: str
    seed: int
    threads: int
    patience: float
    max_rows: int = MAX_ROWS
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    as_checkpoint: bool = False
    place: Path | None = None
    module: str = MODULE
    starts: int = field(default=0, init=False)
    _snapshot: Snapshot | None = field(default=None, init=False)

    def start(self, policy: Policy) -> EngineChild:
        """A process that is on its way up.

        Raises:
            NodeError: the machine starts no process, or the weights cannot be written.
        """
        if self._snapshot is None:
            self._snapshot = Snapshot(policy, as_checkpoint=self.as_checkpoint, place=self.place)
        self.starts += 1
        settings = self._settings(policy, self._snapshot)
        variables = {**environment(self.threads), **self.variables}
        try:
            return EngineChild(settings, variables, self.patience, self.module)
        except OSError as error:
            raise NodeError(
                "no process can be started for the engine",
                error,
                "Raise the limits of processes and open files (ulimit -u, ulimit -n).",
            ) from error

    def write(self, policy: Policy) -> None:
        """Hand the weights over to the process that runs, if one was ever started.

        Raises:
            NodeError: they cannot be written; the earlier ones are whole.
        """
        if self._snapshot:
            self._snapshot.write(policy)

    def remove(self) -> None:
        """Take the weights away."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot:
            snapshot.remove()

    def _settings(self, policy: Policy, snapshot: Snapshot) -> BackendSettings:
        return BackendSettings(
            kind=self.kind,
            folder=str(snapshot.folder),
            dtype=str(policy.model.dtype).removeprefix("torch."),
            device=str(policy.device),
            stop_ids=policy.stop_ids,
            context_length=policy.context_length,
            seed=Random(f"{self.seed}/{policy.version}/{self.starts}").getrandbits(31),
            max_rows=self.max_rows,
            options=dict(self.options),
        )
