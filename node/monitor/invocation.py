"""How a person starts this program again, from any folder and any shell of this machine."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

NAME = "swarm-node"
COMMANDS = (
    *("demo", "plan", "init", "join", "seed", "watch", "found", "status", "runs", "logs", "stop"),
    *("peers", "plot", "dashboard", "rollouts", "doctor", "conformance", "eval", "play", "ask"),
    *("compare", "checkpoints", "rollback", "export", "identity"),
)
"""What may follow the name: after any other word, a text speaks of the program."""
_COMMAND = re.compile(rf"(?<![\w./-]){NAME}(?= (?:--|(?:{'|'.join(COMMANDS)})\b))")


def as_typed(text: str) -> str:
    """Return a text whose commands work as they are printed.

    ``swarm-node COMMAND`` stays if the shell finds this very program by its name. Otherwise the
    program's path takes the place of the name, as after an installation into an environment that
    is not activated.
    """
    return _COMMAND.sub(lambda _: program(), text)


@cache
def program() -> str:
    """Return the program's name, or its absolute path, quoted for a shell."""
    # Not resolved: the Python of an environment is a link out of it.
    installed = Path(sys.executable).absolute().parent / NAME
    found = shutil.which(NAME)
    if not installed.exists() or (found and installed.samefile(found)):
        return NAME
    return shlex.quote(str(installed))
