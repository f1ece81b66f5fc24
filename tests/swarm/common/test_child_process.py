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
    here, there = map(Channel, sockets)
    yield here, there
    here.close()
    there.close()


def test_after_it_was_closed_the_other_side_counts_as_gone_from_both_ends(ends):
    here, _ = ends
    here.close()
    for end in ends:
        with pytest.raises(ChannelError, match="gone"):
            end.receive()
        with pytest.raises(ChannelError, match="gone"):
            end.send({"word": 1})


def test_closing_ends_a_wait_for_a_message_and_a_wait_to_be_read(sockets, ends):
    here, _ = ends
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(here.receive), threads.submit(here.send, {"text": "x" * (8 << 20)})]
        # The first bytes have arrived, so the sender waits for the rest to be read.
        assert sockets[1].recv(1)
        here.close()
        assert all(isinstance(each.exception(20), ChannelError) for each in waits)


def test_what_has_arrived_is_taken_whole_and_nothing_is_waited_for(sockets, ends):
    here, there = ends
    assert here.arrived() == []
    there.send({"word": 1})
    there.send({"word": 2})
    message = packed({"word": "three"})
    sockets[1].sendall(message[:-1])
    assert here.arrived() == [{"word": 1}, {"word": 2}] and here.arrived() == []
    sockets[1].sendall(message[-1:])
    assert here.arrived() == [{"word": "three"}]
    there.close()
    with pytest.raises(ChannelError, match="gone"):
        here.arrived()


def test_a_wait_that_ends_in_the_middle_of_a_message_loses_none_of_it(sockets, ends):
    here, _ = ends
    message = packed({"word": "x" * 100})
    for part in (message[:2], message[2:9], message[9:50]):
        sockets[1].sendall(part)
        with pytest.raises(TimeoutError):
            here.receive(0.01)
    sockets[1].sendall(message[50:])
    assert here.receive() == {"word": "x" * 100}


def test_a_message_that_is_larger_than_any_is_neither_sent_nor_waited_for(sockets, ends):
    here, there = ends
    with pytest.raises(ValueError, match="at most"):
        there.send({"text": "x" * MAX_MESSAGE_BYTES})
    sockets[1].sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(ChannelError, match="at most"):
        here.arrived()


def test_work_is_done_in_turn_on_one_thread_and_an_error_raised_where_the_result_is_asked_for():
    worker, done = WorkThread("worker"), []
    results = [worker.submit(lambda n=n: done.append(n) or threading.get_ident()) for n in range(9)]
    (only,) = {result.result(20) for result in results}
    assert done == list(range(9)) and only != threading.get_ident()
    failed = worker.submit(lambda: 1 / 0)
    assert worker.submit(lambda: 7).result(20) == 7
    with pytest.raises(ZeroDivisionError):
        failed.result(20)
    worker.close()


def test_on_windows_the_interpreter_that_a_virtual_environment_would_start_is_started_itself():
    own, base = r"C:\node\.venv\Scripts\python.exe", r"C:\Python312\python.exe"
    started, variables = interpreter(own, base, windows=True)
    assert (started, variables) == (base, {"__PYVENV_LAUNCHER__": own})
    assert interpreter(base, base, windows=True) == (base, {})
    assert interpreter("/node/.venv/bin/python", "/usr/bin/python3", windows=False) == (
        "/node/.venv/bin/python",
        {},
    )


@pytest.mark.parametrize("system", ["linux", "win32", "darwin"])
def test_a_process_is_killed_on_every_system_and_killed_again_is_no_error(system, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, **GROUP)
    with process:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", system)
            if system == "win32":
                patch.delattr(os, "killpg")
            kill_group(process)
        assert process.wait(20) == -signal.SIGKILL
        monkeypatch.setattr(sys, "platform", system)
        if system == "darwin":  # of a group that has only ended processes
            monkeypatch.setattr(os, "killpg", Mock(side_effect=PermissionError(1, "not permitted")))
        kill_group(process)


def test_on_windows_a_child_is_in_a_group_that_ctrl_c_does_not_reach(monkeypatch):
    assert own_group() == own_group(lasting=True) == {"start_new_session": True}
    monkeypatch.setattr(sys, "platform", "win32")
    assert own_group() == {"creationflags": 0x200}
    assert own_group(lasting=True) == {"creationflags": 0x8000200}, "and has its own console"
