"""A machine whose shared memory is full, as in a container that has 64 MiB of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.commands import Command

pytestmark = pytest.mark.processes

FULL = "mount -t tmpfs -o size=4k tmpfs /dev/shm && echo full > /dev/shm/filler"
OWN_MOUNTS = ("unshare", "--mount", "sh", "-c", f'{FULL} && exec "$@"', "sh")


@pytest.mark.parametrize("command", ["bootstrap", "join", "demo"])
def test_full_shared_memory_is_named_with_the_remedy_before_anything_is_made(
    command: str, tmp_path: Path
) -> None:
    tried = shutil.which("unshare") and subprocess.run([*OWN_MOUNTS, "true"], capture_output=True)
    if not tried or tried.returncode:
        pytest.skip("no disk of its own can be mounted here")
    with Command(tmp_path, command, beneath=OWN_MOUNTS) as node:
        assert node.wait() == 1
        (line,) = node.err
    assert "/dev/shm (No space left on device). Free some space there" in line
    assert list(tmp_path.iterdir()) == []
