import pytest
from packaging.requirements import Requirement

from install.environment import requirements
from tests.node.programs import ROOT, python

PRELUDE = """
import builtins, multiprocessing, os, pkgutil, select, signal, socket, sys
from importlib import import_module

OURS = ("node", "swarm", "protocol")
CHOOSES = "node.storage.atomic_files"  # imports what the system that it runs on has
SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}  # of Windows
UNIX = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "hivemind", "pyseccomp"}
load = builtins.__import__

def without(name, scope=None, *rest, **named):
    importer = (scope or {}).get("__name__", "")
    looked_at = importer.partition(".")[0] in OURS and importer != CHOOSES
    if looked_at and name.partition(".")[0] in UNIX:
        raise ModuleNotFoundError(f"{name}, which {importer} imports, is Unix's")
    return load(name, scope, *rest, **named)

import node, protocol, swarm

NOT_HERE = (
    "node.engines.vllm",
    "node.environments.verifiers",
    "node.tasks.sandbox.namespaces"
)

def ours():
    for package in (protocol, swarm, node):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(NOT_HERE):
                yield module.name

# Other packages have their own ways around a system, and those for this one are not looked at.
for name in list(ours()):
    import_module(name)
for name in list(sys.modules):
    if name.partition(".")[0] in OURS:
        del sys.modules[name]
import node, protocol, swarm

builtins.__import__ = without
for module, names in (
    (os, ("fork", "getuid", "getgid", "killpg", "nice", "uname", "setsid", "sched_getaffinity")),
    (os, ("WTERMSIG", "WIFSIGNALED", "pidfd_open", "wait4", "sysconf", "getpgrp", "tcgetpgrp")),
    (signal, ("pthread_sigmask", "setitimer", "ITIMER_VIRTUAL", "pidfd_send_signal")),
    (signal, tuple(each.name for each in signal.Signals if each.name not in SIGNALS)),
    (select, ("poll", "epoll")),
    (socket, ("AF_UNIX",))
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""

LOADS_ALL = """
missing = []
for name in ours():
    try:
        import_module(name)
    except (ImportError, AttributeError) as error:
        missing.append(f"{name}: {error}")
assert not missing, "\\n".join(missing)
"""

NO_FORK = """
multiprocessing.context._concrete_contexts.pop("fork")
multiprocessing.get_all_start_methods = lambda: ["spawn"]
from node.threads import check_semaphores
check_semaphores()
"""


@pytest.mark.parametrize("work", [LOADS_ALL, NO_FORK], ids=["all modules", "no fork"])
def test_node_loads_without_unix_modules(work):
    run = python(PRELUDE + work, cwd=ROOT)
    assert run.returncode == 0, run.stderr


TRANSPORTS = {"win32": "libp2p", "linux": "hivemind", "darwin": "hivemind"}


@pytest.mark.parametrize(("system", "transport"), TRANSPORTS.items())
def test_plain_install_includes_the_default_transport(system, transport):
    needed = [Requirement(line) for line in requirements()]
    deps = {r.name for r in needed if not r.marker or r.marker.evaluate({"sys_platform": system})}
    assert deps & {"libp2p", "hivemind"} == {transport}
    code = (
        "import pydantic, node.config.registry, sys\n"
        f"sys.platform = {system!r}\n"
        "from node.config.sections import NetworkSection\n"
        "print(NetworkSection().transport)"
    )
    result = python(code, cwd=ROOT)
    assert result.stdout.strip() == transport, result.stderr
