"""Ordinary ``swarm-node`` commands in a place of the laboratory, and their output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from node.config.config import Config, write_config
from node.network.creation import create_swarm
from node.storage.atomic_files import write_new
from protocol.identity import Identity
from tests.routers.laboratory import Place

ROOT = Path(__file__).parents[2]
EPOCH_SECONDS = 10.0
GRACE_SECONDS = 20.0


class Member:
    """One node or bootstrap node in a place; its run folder may outlive a process.

    Args:
        settings: replace the settings that make a node small.
    """

    def __init__(self, place: Place, folder: Path, command: str, **settings: Any) -> None:
        self.place, self.folder = place, folder
        self._command = command
        folder.mkdir(exist_ok=True)
        if not (folder / "identity.key").exists():
            Identity.create(folder / "identity.key")
        overrides = {key.replace("__", "."): value for key, value in settings.items()}
        small = SMALL if command == "join" else {}
        config = Config.with_overrides({"node.name": folder.name, **small, **overrides})
        write_config(folder / "node.toml", config)
        self._output = (folder / "output.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def peer_id(self) -> str:
        """The peer id of its key, whether or not it runs."""
        return Identity.load(self.folder / "identity.key").peer_id

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else 0

    def start(self) -> Member:
        self._process = subprocess.Popen(
            [
                *(*self.place.prefix, sys.executable, "-m", "node.cli.main"),
                *(self._command, "--config", str(self.folder / "node.toml"), "--stop-on-eof"),
            ],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        return self

    def status(self) -> dict[str, Any]:
        """Return its last status; empty before this process first writes one."""
        try:
            status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return status if self._process and status["pid"] == self._process.pid else {}

    def said(self, words: str) -> bool:
        return words in (self.folder / "output.log").read_text(errors="replace")

    def last_words(self) -> str:
        return "\n".join((self.folder / "output.log").read_text().splitlines()[-5:])

    def tell(self, *command: str) -> str:
        """Return what ``swarm-node`` with these words prints for this node."""
        full = [sys.executable, "-m", "node.cli.main", *command]
        full += ["--config", str(self.folder / "node.toml")]
        here = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
        command = [*self.place.prefix, *full]
        return subprocess.run(command, capture_output=True, text=True, check=False, **here).stdout

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Stop the node in order; kill it after the grace period."""
        if self._process is None:
            self._output.close()
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdin:
            self._process.stdin.close()
        self._output.close()


SMALL: dict[str, Any] = {
    "node.threads": 1,
    "mixture.local": 2,
    "mixture.external": 2,
    "engine.max_new_tokens": 8,
    "learner.micro_batch_tokens": 1024,
    "schedule.rounds": 0,
    "schedule.eval_every": 1000,
    "schedule.eval_tasks": 4,
    "monitor.live": False,
}


def created(folder: Path) -> None:
    folder.mkdir()
    identity = Identity.create(folder / "identity.key")
    signed = create_swarm(identity, name="routers", task_set="tiny", epoch_seconds=EPOCH_SECONDS)
    write_new(folder / "manifest.swarm", signed)
