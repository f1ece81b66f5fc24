"""Run every escape attempt in a sandboxed worker and print the results.

``python deeds_probe.py WALLS UID`` (sandbox, user); as root, it gives the user this interpreter.
"""

import ctypes
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from node.tasks.sandbox import sandbox
from node.tasks.task_set import Allowed
from node.tasks.verifier.verifier import Verifier
from node.tasks.verifier.worker_process import WorkerLimits
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from swarm.verification import VerifierError
from tests.hostile.deeds import DEEDS, GOOD, call_deeds
from tests.node.packages import declare

SPECS = [EnvSpec(n, "plugin", "1", ("{}",), "{question}", "text") for n in ("deeds", "deeds_once")]
LIMITS = WorkerLimits(cpu_seconds=2, wall_seconds=600.0, start_seconds=300.0)
TARGETS = {"deeds": "tests.hostile.deeds:Deeds", "deeds_once": "tests.hostile.deeds:DeedsOnce"}


def become(user: int) -> None:
    """Switch to an ordinary user, who must be able to reach this interpreter."""
    if user == os.getuid():
        return
    above = reversed(Path(sys.base_prefix).parents)
    hidden = next((path for path in above if not path.stat().st_mode & 1), None)
    if hidden is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        kept = tempfile.mkdtemp(dir="/tmp")
        inside = Path(sys.base_prefix)
        for call in (
            lambda: libc.unshare(1 << 17),
            lambda: libc.mount(None, b"/", None, (1 << 14) | (1 << 18), None),
            lambda: libc.mount(bytes(inside), kept.encode(), None, 1 << 12, None),
            lambda: libc.mount(b"tmpfs", bytes(hidden), b"tmpfs", 0, b"mode=0755"),
            lambda: inside.mkdir(parents=True),
            lambda: libc.mount(kept.encode(), bytes(inside), None, 1 << 13, None),
        ):
            if call():
                raise OSError(ctypes.get_errno(), "the interpreter cannot be shown to others")
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def listen(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Start listeners; return their addresses and a list of accepted connections."""
    noticed: list[str] = []
    tcp = socket.create_server(("127.0.0.1", 0))
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "socket"))
    name = f"deeds-{os.getpid()}"
    abstract.bind(f"\0{name}")
    for listener in (tcp, unix, abstract):
        listener.listen()

        def accept(listener: socket.socket = listener) -> None:
            while listener.accept():
                noticed.append(str(listener))

        threading.Thread(target=accept, daemon=True).start()
    return {"port": tcp.getsockname()[1], "name": name}, noticed


def verdict(verifier: Verifier, env: str, texts: list[str]) -> Any:
    try:
        return list(verifier.verify(TaskRef(env, 0, 1), texts).rewards)
    except VerifierError as refusal:
        return refusal.reason


def after(verifier: Verifier) -> dict[str, Any]:
    """Return how texts that run as code affect texts scored with or after them."""
    patch = "type(me).score = lambda *_: 1.0"
    forge = (
        "import os\nfor fd in range(64):\n"
        " try: os.write(fd, b'[1.0, 0, \"\"]' * 3)\n except OSError: pass"
    )
    leave = "import os; os.write(3, b'[1.0, 0, \"\"]'); os._exit(0)"
    tries = {
        "patch": [patch, "bad", "bad", GOOD],
        "forge": [forge, "bad", "bad"],
        "leave": [leave, "bad", GOOD],
        "left": ["import os; os._exit(0)", "bad", GOOD],
        "memory": ["bytearray(1 << 40)", "bad"],
        "much_memory": ["x = [bytearray(1 << 26) for _ in range(200)]", "bad"],
        "cpu": ["while True: pass", "bad"],
        "more_cpu": ["import resource; resource.setrlimit(0, (50, 50))\nwhile True: pass", "bad"],
        "after": ["bad", GOOD],
    }  # fmt: skip
    return {name: verdict(verifier, "deeds_once", texts) for name, texts in tries.items()}


def main(kind: str, user: int) -> dict[str, Any]:
    if kind == "namespaces":
        sandbox.shutil.which = lambda name: None
    become(user)
    folder = Path(tempfile.mkdtemp())
    for name in ("key", "victim"):
        (folder / name).write_text("mine")
        (folder / name).chmod(0o600)
    for name, target in TARGETS.items():
        declare(pytest.MonkeyPatch(), folder, name, target)
    os.environ["DEEDS_SECRET"] = "secret"
    victim = subprocess.Popen(["sleep", "3600"])
    values, noticed = listen(folder)
    values |= {"folder": folder, "parent": os.getpid(), "victim": victim.pid}
    deeds = {name: code.format(**values) for name, code in DEEDS.items()}
    if platform.machine() == "x86_64":
        deeds |= call_deeds()
    allowed = Allowed(code_execution=["deeds_once"])
    try:
        with Verifier(SPECS, allowed, outside=True, limits=LIMITS) as verifier:
            # The scores of later texts count as much as the attempt itself.
            results = {
                env: {n: verdict(verifier, env, [code, GOOD, "bad"]) for n, code in deeds.items()}
                for env in verifier.start()
            }
            return {
                "walls": sandbox.sandbox_support().kind,
                "whole": sandbox.sandbox_support().whole,
                "user": os.getuid(),
                "found": results,
                "after": after(verifier),
                "noticed": noticed,
                "victim_lives": victim.poll() is None,
                "intact": (folder / "victim").read_text() == "mine",
            }
    finally:
        victim.kill()
        victim.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1], int(sys.argv[2]))))
