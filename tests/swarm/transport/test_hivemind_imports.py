"""hivemind's network without its training, in a process that runs nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOADED = "print(sorted({'torch', 'scipy'} & set(sys.modules)))"
NODE = Path(__file__).parents[3] / "swarm/transport/hivemind/node.py"


def python(script: str) -> str:
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    light = "import sys; from swarm.transport.hivemind.transport import import_network as light; "
    run = subprocess.run(
        [sys.executable, "-c", light + script], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_all_that_a_node_uses_is_imported_without_torch_and_scipy() -> None:
    used = [line.strip() for line in NODE.read_text().splitlines() if "from hivemind." in line]
    assert "from hivemind.dht.node import DHTNode" in used
    imports = "\n".join(used)
    assert python(f"light()\n{imports}\n{LOADED}") == "[]"


def test_names_of_the_package_are_those_of_its_modules() -> None:
    same = "utils.MSGPackSerializer is storage.MSGPackSerializer is serializer.MSGPackSerializer"
    modules = "from hivemind.utils import serializer; from hivemind.dht import storage"
    assert python(f"light(); import hivemind.utils as utils; {modules}; print({same})") == "True"
