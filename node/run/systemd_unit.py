"""A node as a service of a user's systemd, which starts it again after a failure."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from node.errors import NodeError
from node.storage.atomic_files import write_new

STOP_SECONDS = 600
"""For a round and its checkpoint; whatever is left after that is killed."""


def write_unit(config: Path) -> Path:
    """Write a unit that joins with ``config`` by this very interpreter, beside that file.

    Raises:
        NodeError: there is one already, it cannot be written, or a unit cannot name that path.
    """
    config = config.absolute()
    name = re.sub(r"[^A-Za-z0-9:_.-]+", "-", config.parent.name)
    path = config.parent / f"swarm-node-{name}.service"
    if not str(config).isprintable():
        raise NodeError("a unit cannot name", ascii(str(config)), "Choose a folder of letters.")
    if path.exists():
        raise NodeError("there is a unit already", path, "Edit it, or remove it first.")
    write_new(path, _unit(config).encode())
    return path


def _unit(config: Path) -> str:
    # Not resolved: the interpreter of a virtual environment is a link that leads out of it.
    interpreter = str(Path(sys.executable).absolute())
    arguments = ["-m", "node.cli.main", "join", "--config", str(config).replace("$", "$$")]
    start = " ".join(map(_quoted, [interpreter, *arguments]))
    folder = _literal(str(config.parent))
    return f"""\
[Unit]
Description=swarm-node in {folder}

[Service]
WorkingDirectory={folder}
{_environment()}ExecStart={start}
Restart=on-failure
RestartSec=30
# A config that makes no sense does not mend itself.
RestartPreventExitStatus=2
# The node ends its round, writes a checkpoint and ends its p2p daemon itself.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={STOP_SECONDS}

[Install]
WantedBy=default.target
"""


def _environment() -> str:
    """Where this program was found, when that is no matter of the interpreter alone."""
    given = os.environ.get("PYTHONPATH", "")
    paths = [str(Path(each).absolute()) for each in given.split(os.pathsep) if each]
    return f"Environment={_quoted('PYTHONPATH=' + os.pathsep.join(paths))}\n" if paths else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_literal(escaped)}"'


def _literal(text: str) -> str:
    """The text with nothing in it that systemd replaces."""
    return text.replace("%", "%%")
