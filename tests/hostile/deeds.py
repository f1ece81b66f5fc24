"""Envs that run an answer as code, and escape attempts for such answers."""

from collections.abc import Mapping
from typing import Any

GOOD = "good"


class Deeds:
    """Runs an answer as code: reward 1 if it completes, 0 if something stops it."""

    version = "1"
    evaluates_text = False

    def __init__(self, levels: list[Mapping[str, Any]]) -> None:
        self.levels = len(levels)

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        return {"question": str(number)}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        if answer in (GOOD, "bad"):
            return float(answer == GOOD)
        exec(answer, {"me": self})
        return 1.0


class DeedsOnce(Deeds):
    """The same env, declared as evaluating text."""

    evaluates_text = True


DEEDS = {
    # The worker owns the streams, its channel and an event loop pair. Later attempts open more.
    "hold_a_descriptor_of_others": "import os; os.fstat(6)",
    "connect": "import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
    "send_a_datagram": "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', {port}))",
    "open_netlink": "import socket; socket.socket(16, 3)",
    "open_a_unix_socket": "import socket; socket.socket(1).connect('{folder}/socket')",
    "open_an_abstract_socket": "import socket; socket.socket(1).connect('\\0{name}')",
    "make_a_socket_pair": "import socket; socket.socketpair()",
    "resolve_a_name": "import socket; socket.socket(2, 2).connect(('127.0.0.53', 53))",
    "read_a_key": "open('{folder}/key').read()",
    "read_passwd": "open('/etc/passwd').read()",
    "see_a_file": "import os; os.stat('{folder}/key')",
    "read_the_parents_environment": "open('/proc/{parent}/environ', 'rb').read()",
    "read_its_waiters_environ": ("import os; open(f'/proc/{{os.getppid()}}/environ', 'rb').read()"),
    "find_a_secret_in_its_environment": "import os; os.environ['DEEDS_SECRET']",
    "list_processes": "import os; os.listdir('/proc')[0]",
    "write_the_parents_memory": "open('/proc/{parent}/mem', 'r+b')",
    "write_its_own_memory_file": "open('/proc/self/mem', 'r+b')",
    "see_a_process": "import os; os.kill({victim}, 0)",
    "kill_a_process": "import os; os.kill({victim}, 9)",
    "signal_the_node": "import os; os.kill({parent}, 0)",
    "signal_its_waiter": "import os; os.kill(os.getppid(), 0)",
    "signal_its_group": "import os; os.killpg(0, 0)",
    "take_a_handle_of_a_process": "import os; os.pidfd_open({victim})",
    "lower_anothers_limits": "import resource; resource.prlimit({victim}, 0, (1, 1))",
    "change_anothers_priority": "import os; os.setpriority(0, {victim}, 19)",
    "trace_a_process": "import ctypes; assert ctypes.CDLL(None).ptrace(16, {victim}, 0, 0) == 0",
    "be_traced": "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "fork": "import os; os.fork() or os._exit(0)",
    "start_a_program": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "spawn_python": "import os, sys; os.posix_spawn(sys.executable, ['python'], {{}})",
    "replace_itself": "import os, sys; os.execv(sys.executable, ['python'])",
    "run_a_shell": "import os; assert os.system('true') == 0",
    "start_a_thread": "import threading; threading.Thread(target=print).start()",
    "overwrite_a_file": "open('{folder}/victim', 'r+').write('mallory')",
    "truncate_a_file": "import os; os.truncate('{folder}/victim', 0)",
    "delete_a_file": "import os; os.unlink('{folder}/victim')",
    "rename_a_file": "import os; os.rename('{folder}/victim', '{folder}/gone')",
    "open_a_file_up": "import os; os.chmod('{folder}/victim', 0o777)",
    "write_where_it_is": "open('mallory', 'w')",
    "write_to_tmp": "open('/tmp/mallory', 'w')",
    "write_to_shared_memory": "open('/dev/shm/mallory', 'w')",
    "make_a_folder": "import os; os.mkdir('/mallory')",
    "write_what_is_imported": "import json; open(json.__file__, 'a')",
    "link_what_is_imported": "import json, os; os.symlink(json.__file__, '/mallory')",
    "map_a_file_to_write": (
        "import json, mmap, os; f = os.open(json.__file__, os.O_RDONLY);"
        "mmap.mmap(f, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)[0]"
    ),
    "map_a_victim": (
        "import mmap, os; f = os.open('{folder}/victim', os.O_RDWR);"
        "mmap.mmap(f, 0)[:1] = b'm'"
    ),
    "map_shared_memory": "import mmap; mmap.mmap(-1, 4096)",
    "make_a_file_in_memory": "import os; os.memfd_create('mallory')",
    "mount": "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, None) == 0",
    "take_new_namespaces": "import ctypes; assert ctypes.CDLL(None).unshare(1 << 28) == 0",
    "change_the_root": "import os; os.chroot('/')",
    "change_user": "import os; os.setuid(os.getuid())",
    "make_a_device": "import os; os.mknod('/mallory')",
    "undo_its_walls": "import ctypes; assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0",
    "be_given_a_descriptor": ("import socket, os; os.sendfile(1, os.open('/dev/null', 0), 0, 1)"),
}  # fmt: skip
"""Python that completes unless it is stopped; the probe fills in ``{...}``."""

X86_CALLS = {
    "io_uring": 425, "bpf": 321, "userfaultfd": 323, "add_key": 248, "keyctl": 250, "perf": 298,
    "open_by_handle": 304, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440, "fsopen": 430,
    "open_tree": 428, "move_mount": 429, "setns": 308, "tgkill": 234, "tkill": 200,
    "rt_sigqueueinfo": 129, "sched_setaffinity": 203, "reboot": 169, "init_module": 175,
    "shmget": 29, "msgget": 68, "semget": 64, "inotify": 294, "fanotify": 300, "modify_ldt": 154,
}  # fmt: skip
"""System calls by x86-64 number; the kernel must answer EPERM or ENOSYS."""


def call_deeds() -> dict[str, str]:
    """Return calls with zero arguments; the sandbox refuses before it reads them."""
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True);"
        "assert not (libc.syscall({number}, 0, 0, 0, 0, 0) == -1"
        " and ctypes.get_errno() in (1, 38))"
    )
    return {f"call_{name}": code.format(number=number) for name, number in X86_CALLS.items()}
