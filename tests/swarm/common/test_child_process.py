import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from node.threads import WorkThread
from swarm.common.child_process import (
    MAX_MESSAGE_BYTES,
    Channel,
    ChannelError,
    interpreter,
    kill_group,
    own_group,
    packed,
)

GROUP = own_group()


@pytest.fixture
def sockets():
    return socket.socketpair()


@pytest.fixture
def ends(sockets):
    near, far = map(Channel, sockets)
    yield near, far
    near.close()
    far.close()


def test_closed_channel_reports_the_other_side_gone_on_both_ends(ends):
    near, _ = ends
    near.close()
    for end in ends:
        with pytest.raises(ChannelError, match="gone"):
            end.receive()
        with pytest.raises(ChannelError, match="gone"):
            end.send({"word": 1})


def test_close_ends_pending_receive_and_send_calls(sockets, ends):
    near, _ = ends
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(near.receive), threads.submit(near.send, {"text": "x" * (8 << 20)})]
        # The first byte has arrived, so the sender waits until the rest is read.
        assert sockets[1].recv(1)
        near.close()
        assert all(isinstance(each.exception(20), ChannelError) for each in waits)


def test_arrived_returns_only_complete_messages_without_waiting(sockets, ends):
    near, far = ends
    assert near.arrived() == []
    far.send({"word": 1})
    far.send({"word": 2})
    message = packed({"word": "three"})
    sockets[1].sendall(message[:-1])
    assert near.arrived() == [{"word": 1}, {"word": 2}] and near.arrived() == []
    sockets[1].sendall(message[-1:])
    assert near.arrived() == [{"word": "three"}]
    far.close()
    with pytest.raises(ChannelError, match="gone"):
        near.arrived()


def test_receive_timeout_inside_a_message_loses_no_data(sockets, ends):
    near, _ = ends
    message = packed({"word": "x" * 100})
    for part in (message[:2], message[2:9], message[9:50]):
        sockets[1].sendall(part)
        with pytest.raises(TimeoutError):
            near.receive(0.01)
    sockets[1].sendall(message[50:])
    assert near.receive() == {"word": "x" * 100}


def test_channel_rejects_oversized_messages_in_both_directions(sockets, ends):
    near, far = ends
    with pytest.raises(ValueError, match="at most"):
        far.send({"text": "x" * MAX_MESSAGE_BYTES})
    sockets[1].sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(ChannelError, match="at most"):
        near.arrived()


def test_work_thread_runs_calls_in_order_and_raises_errors_from_results():
    worker, done = WorkThread("worker"), []
    results = [worker.submit(lambda n=n: done.append(n) or threading.get_ident()) for n in range(9)]
    (only,) = {result.result(20) for result in results}
    assert done == list(range(9)) and only != threading.get_ident()
    failed = worker.submit(lambda: 1 / 0)
    assert worker.submit(lambda: 7).result(20) == 7
    with pytest.raises(ZeroDivisionError):
        failed.result(20)
    worker.close()


def test_windows_child_starts_the_base_interpreter_without_the_venv_launcher():
    own, base = r"C:\node\.venv\Scripts\python.exe", r"C:\Python312\python.exe"
    started, variables = interpreter(own, base, windows=True)
    assert (started, variables) == (base, {"__PYVENV_LAUNCHER__": own})
    assert interpreter(base, base, windows=True) == (base, {})
    assert interpreter("/node/.venv/bin/python", "/usr/bin/python3", windows=False) == (
        "/node/.venv/bin/python",
        {},
    )


@pytest.mark.parametrize("system", ["linux", "win32", "darwin"])
def test_kill_group_works_on_every_system_and_can_be_repeated(system, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, **GROUP)
    with process:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", system)
            if system == "win32":
                patch.delattr(os, "killpg")
            kill_group(process)
        assert process.wait(20) == -signal.SIGKILL
        monkeypatch.setattr(sys, "platform", system)
        if system == "darwin":  # macOS reports this for a group of ended processes.
            monkeypatch.setattr(os, "killpg", Mock(side_effect=PermissionError(1, "not permitted")))
        kill_group(process)


def test_windows_child_group_does_not_receive_ctrl_c(monkeypatch):
    assert own_group() == own_group(lasting=True) == {"start_new_session": True}
    monkeypatch.setattr(sys, "platform", "win32")
    assert own_group() == {"creationflags": 0x200}
    assert own_group(lasting=True) == {"creationflags": 0x8000200}, "lasting gives its own console"
