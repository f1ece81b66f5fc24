"""The baseline of a node that starts: its progress, its verdict, and what the user makes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from node.config.config import set_keys
from node.config.schema import toml_value
from node.errors import NodeError
from node.evaluation.baseline import SECONDS, BaselineTrial
from node.monitor.live import Stages
from node.run.status import RunOptions
from swarm.verification import JudgeRefused


@dataclass(frozen=True, slots=True)
class BaselineDialogue:
    """Tries a policy, says what was found, and changes the config if the user agrees.

    ``tell`` prints and logs a line. The question is asked only at a terminal, without ``--json``.
    """

    options: RunOptions
    stages: Stages
    tell: Callable[[str], None]

    def __call__(self, trial: BaselineTrial) -> Mapping[str, Any]:
        """Return the keys that the config is changed by, for this run and in its file."""
        self.stages.begin(
            f"trying the policy on the swarm's tasks, for {SECONDS:g} seconds at most "
            "(--no-baseline skips it)"
        )
        try:
            found = trial.run(SECONDS, self.stages.progress)
        except (JudgeRefused, NodeError) as error:
            self.tell(f"the policy could not be tried on this swarm's tasks: {error}")
            return {}
        for line in found.lines():
            self.tell(line)
        keys = found.settings()
        if not keys:
            return {}
        for key, value in keys.items():
            self.tell(f"  it suggests {key} = {toml_value(value)}")
        if not self._agreed():
            return {}
        if self.options.config is not None:
            try:
                set_keys(self.options.config, keys)
            except (NodeError, OSError) as error:
                self.tell(f"this run has these settings, but {error}")
            else:
                self.tell(f"written to {self.options.config}")
        return keys

    def _agreed(self) -> bool:
        if self.options.accept:
            return True
        if self.options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            self.tell("to take that, start it with --accept")
            return False
        self.stages.close()
        return typer.confirm("write that into the config and train with it?", default=True)
