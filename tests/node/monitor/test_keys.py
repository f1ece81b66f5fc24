"""Keys are read without Enter, and the terminal is everybody's again afterwards."""

import os
import signal
import subprocess
import sys
import termios

import pytest

from node.monitor.live import Keys
from tests.node.monitor.job_control import ROOT, TerminalJob

LONG = "x" * 300
SPEAKS = f"""
import sys, time
from contextlib import closing
from node.cli.options import waiting
from node.monitor.live import Stages
from node.monitor.output import guard_output, say
guard_output()
def speak():
    time.sleep(0.3)
    say("aloud")
    say("{LONG}", err=True)
    time.sleep(0.3)
with waiting("loading"):
    speak()
with closing(Stages()) as stages:
    stages.begin("opening")
    speak()
say("done")
"""

PROGRAM = """
import os, signal, threading, time
from node.monitor.live import LOOK_SECONDS, Keys
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
def tell(line):
    os.write(1, (line + os.linesep).encode())  # whole, as several threads do
def cursor(shown):
    tell(f"cursor {shown}")
    time.sleep(2 * LOOK_SECONDS)  # whoever still looks at the terminal does so now
keys = Keys(lambda key: tell(f"key {key!a}"), cursor)
keys.start()
tell(f"reads {keys.reads}")
while not ended.wait(3 * LOOK_SECONDS):
    tell("alive")
keys.close()
keys.close()
"""
LOCAL_MODES = 3


@pytest.fixture
def job():
    with TerminalJob("-c", PROGRAM) as running:
        running.until("reads True")
        yield running


def by_key(job):
    """Whether the terminal hands on single keys, and echoes none."""
    return not job.modes()[LOCAL_MODES] & (termios.ICANON | termios.ECHO)


def test_a_key_is_told_at_once_unless_it_sends_several_characters_and_the_terminal_comes_back(job):
    job.press(b"r")
    job.until("key 'r'")
    assert by_key(job)
    job.press(b"\x1bOr")
    assert "key" not in job.until("alive") + job.until("alive")
    job.press(b"x")
    job.until("key 'x'")
    os.kill(job.pid, signal.SIGTERM)
    assert job.order("wait") == "exited 0" and job.modes() == job.before


def test_a_stopped_program_leaves_the_terminal_as_it_was_and_goes_on_with_keys(job):
    job.until("alive")
    job.press(b"\x1a")
    assert job.order("wait") == "stopped"
    job.until("cursor True")
    assert job.modes() == job.before
    job.order("front")
    os.kill(job.pid, signal.SIGCONT)
    job.until("cursor False")
    job.press(b"r")
    job.until("key 'r'")
    assert by_key(job)
    job.press(b"\x1a")
    assert job.order("wait") == "stopped", "the second time as well"
    assert job.modes() == job.before


def test_in_the_background_nothing_is_read_and_nothing_stops_the_program(job):
    job.until("alive")
    job.press(b"\x1a")
    assert job.order("wait") == "stopped"
    job.order("back")
    os.kill(job.pid, signal.SIGCONT)
    job.press(b"r")
    for _ in range(3):
        job.until("alive")
    assert job.modes() == job.before
    job.order("front")
    job.until("key 'r'")


def test_a_program_that_is_ended_by_a_key_leaves_the_terminal_as_it_was(job):
    job.until("alive")
    job.press(b"\x1c")
    assert job.order("wait") == f"killed {signal.SIGQUIT.value}" and job.modes() == job.before


def test_a_signal_that_is_ignored_stays_so():
    ignoring = f"import signal; signal.signal(signal.SIGTSTP, signal.SIG_IGN)\n{PROGRAM}"
    with TerminalJob("-c", ignoring) as job:
        job.until("reads True")
        job.press(b"\x1a")
        job.press(b"r")
        job.until("key 'r'")


def test_without_a_terminal_nothing_is_read_or_changed():
    before = signal.getsignal(signal.SIGTSTP)
    keys = Keys(lambda key: None, lambda shown: None)
    keys.start()
    assert not keys.reads and signal.getsignal(signal.SIGTSTP) is before
    keys.close()


def test_a_closed_standard_input_is_no_terminal():
    env = {**os.environ, "PROGRAM": PROGRAM.replace("while not", "ended.set()\nwhile not")}
    command = f'exec "{sys.executable}" -c "$PROGRAM" <&-'
    told = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, cwd=ROOT)
    assert (told.stdout, told.stderr) == ("reads False\n", "")


def test_a_message_while_something_is_awaited_has_a_line_of_its_own():
    with TerminalJob("-c", SPEAKS) as job:
        shown = job.until("done")
        assert job.order("wait") == "exited 0"
    for line in ("aloud", LONG):
        assert shown.count(f"\x1b[2K{line}\r\n") == 2, "in one piece, not behind a spinner"
