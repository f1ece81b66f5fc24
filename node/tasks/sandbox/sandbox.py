"""Sandbox of a worker: detection, launch command, readable paths and grants."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from node.tasks.sandbox.confine import Confinement, seccomp_programs
from node.tasks.sandbox.namespaces import landlock_version
from node.tasks.sources import environments, plugins

PROBE_SECONDS = 30.0
SANDBOX_EXEC = Path("/usr/bin/sandbox-exec")
WORKER = "node.tasks.verifier.worker"
RESOURCES = "only resource limits" if os.name == "posix" else "no sandbox and no limits"
REMEDY = "Install bubblewrap, or allow user namespaces to this user, and install libseccomp."


@dataclass(frozen=True, slots=True)
class SandboxSupport:
    """Sandbox features of this machine; Landlock also blocks opening other files.

    With ``namespaces`` the worker isolates itself; with ``sandbox-exec`` (macOS) other processes
    stay visible.
    """

    kind: Literal["bubblewrap", "namespaces", "sandbox-exec", "none"]
    landlock: bool
    seccomp: bool

    @property
    def whole(self) -> bool:
        """Whether the sandbox fully contains text that runs as code."""
        return self.kind in ("bubblewrap", "namespaces") and self.seccomp

    def __str__(self) -> str:
        features = [name for name in ("landlock", "seccomp") if getattr(self, name)]
        label = ", ".join([self.kind] * (self.kind != "none") + features) or RESOURCES
        return label if self.whole else f"{label}: not enough for tasks that evaluate completions"


@lru_cache
def sandbox_support() -> SandboxSupport:
    """Return the strongest sandbox of this machine, found by probing."""
    if sys.platform == "darwin" and SANDBOX_EXEC.exists():
        support = SandboxSupport("sandbox-exec", landlock=False, seccomp=False)
        if _works(launch_prefix(support, readable(), network=False), "-c", f"import {WORKER}"):
            return support
    if sys.platform != "linux":
        return SandboxSupport("none", landlock=False, seccomp=False)
    has_seccomp, has_landlock = False, landlock_version() > 0
    with suppress(ImportError, RuntimeError, OSError):
        has_seccomp = bool(seccomp_programs())
    bwrap, options = shutil.which("bwrap"), ["--unshare-all", "--die-with-parent"]
    if bwrap and _works([bwrap, *options, "--ro-bind", "/", "/"], "-c", "pass"):
        return SandboxSupport("bubblewrap", has_landlock, has_seccomp)
    supported = platform.machine() in ("x86_64", "aarch64")
    if supported and _works([], "-m", "node.tasks.sandbox.namespaces"):
        return SandboxSupport("namespaces", has_landlock, has_seccomp)
    return SandboxSupport("none", has_landlock, has_seccomp)


def launch_prefix(support: SandboxSupport, readable: Sequence[str], *, network: bool) -> list[str]:
    """Return the command prefix that starts a worker in the sandbox."""
    if support.kind == "bubblewrap":
        command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
        command += ["--cap-drop", "ALL", *(["--share-net"] if network else [])]
        for path in readable:
            command += ["--dev-bind" if path in _DEVICES else "--ro-bind", path, path]
        # Last, because bubblewrap first creates the parent folders of the paths on it.
        return [*command, "--remount-ro", "/", "--chdir", "/", "--"]
    if support.kind != "sandbox-exec":
        return []
    # The kernel compares real paths, and Homebrew's interpreters lie behind links.
    allowed = outermost((*readable, *map(os.path.realpath, readable), "/System", "/usr/lib"))
    rules = " ".join(f'(subpath "{path}")' for path in allowed)
    # A Seatbelt profile, of which the last matching rule wins. To load a program, the linker lists
    # the root folder and maps what it may read.
    profile = (
        "(version 1)(deny default)(allow process-exec)(allow sysctl-read)(allow mach-lookup)"
        "(allow file-map-executable)(allow file-read-metadata)"
        f'(allow file-read* (literal "/") {rules})'
        '(allow file-write* (literal "/dev/null"))(deny process-fork)'
        f"(allow signal (target self)){'(allow network*)' if network else ''}"
    )
    return [str(SANDBOX_EXEC), "-p", profile]


def _works(prefix: Sequence[str], *arguments: str) -> bool:
    environment = {"PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in sys.path)}
    command = [*prefix, sys.executable, "-P", *arguments]
    try:
        return not subprocess.run(
            command,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


_DEVICES = ("/dev/null", "/dev/urandom")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_OURS = ("node", "protocol", "swarm")
_GROUPS = (plugins.GROUP, environments.GROUP)  # entry points whose code runs in a worker


def readable() -> tuple[str, ...]:
    """Return the paths that a worker may read; none lies inside another.

    They cover the interpreter, installed packages, this project and plugins. Other import folders
    add only importable files: a node's key may lie beside them.
    """
    paths: set[Path] = {Path(path) for path in (*_DEVICES, *_LIBRARIES)}
    paths |= {Path(sys.executable), Path(sys.prefix, "pyvenv.cfg")}
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        paths |= {Path(prefix, "lib"), Path(prefix, "lib64")}
    paths |= {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    if sysconfig.get_config_var("PYTHONFRAMEWORK"):  # macOS: its library is beside ``lib``
        paths.add(Path(sys.base_prefix))
    for entry in filter(None, sys.path):
        path = Path(entry).absolute()
        paths |= {path} if path.name.endswith("-packages") else set(_importable(path))
    points = (point for group in _GROUPS for point in entry_points(group=group))
    for name in (*_OURS, *(point.module.partition(".")[0] for point in points)):
        paths |= set(_files_of(name))
    return outermost(str(path) for path in paths if os.path.exists(path))  # noqa: PTH110 - below


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Drop paths that lie inside another path."""
    folders: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders):
            folders.append(path)
    return tuple(folders)


def _importable(folder: Path) -> Iterator[Path]:
    # Like Python, treat an inaccessible folder as absent; pathlib would raise.
    if not os.path.isdir(folder):  # noqa: PTH112
        yield folder
        return
    if not os.access(folder, os.R_OK | os.X_OK):
        return
    for path in folder.iterdir():
        is_package = os.path.isdir(path) and (  # noqa: PTH112
            os.path.exists(path / "__init__.py")  # noqa: PTH110
            or path.suffix in (".dist-info", ".egg-info")
        )
        if is_package or path.suffix in (".py", ".so"):
            yield path


def _files_of(module: str) -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return
    if spec is not None:
        origin = [spec.origin] if spec.origin else []
        yield from map(Path, spec.submodule_search_locations or origin)


_FOR_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki")


@dataclass(frozen=True, slots=True)
class Grants:
    """Access rights of one worker; tasks with other grants have another worker.

    ``read`` lists paths. ``evaluates`` allows evaluating text, in a copy of the worker per text.
    """

    read: tuple[str, ...] = ()
    network: bool = False
    evaluates: bool = False

    def confinement(self, support: SandboxSupport, *, memory_mib: int, nice: int) -> Confinement:
        """Return the confinement of a worker with these grants."""
        # Before version 3, Landlock allows to truncate files that may be read.
        discards = support.landlock and support.kind != "none" and landlock_version() >= 3
        built = seccomp_programs(network=self.network, discards=discards) if support.seccomp else {}
        program = built.get("split" if self.evaluates else "serve", b"")
        one_shot = built["once"] if self.evaluates else b""
        extra = _FOR_NAMES if self.network else ()
        # What is missing cannot be mounted; whoever opens it says so.
        existing = [path for path in (*self.read, *extra) if os.path.exists(path)]  # noqa: PTH110
        return Confinement(
            namespaces=support.kind == "namespaces",
            landlock=support.landlock,
            readable=outermost((*readable(), *existing)),
            listed=tuple(str(Path(entry).absolute()) for entry in filter(None, sys.path)),
            network=self.network,
            program=program.hex(),
            once=one_shot.hex(),
            memory_mib=memory_mib,
            nice=nice,
        )
