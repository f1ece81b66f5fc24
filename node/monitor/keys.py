"""Keys pressed at a terminal while a node works."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from types import FrameType
from typing import Any

LOOK_SECONDS = 0.25
"""Between two looks at whether the terminal is ours, and whether this is closed."""
LEAVING = ("SIGTSTP", "SIGQUIT")
"""Ctrl-Z and Ctrl-\\, after which a shell wants its terminal back."""
LOCAL_MODES, CHARACTERS = 3, 6
"""Of what ``termios.tcgetattr`` returns, the places of the flags for line editing and echo, and of
what ends a read."""
ESCAPE = b"\x1b"


class Keys:
    """Tells of each key as it is pressed, without Enter, where standard input is a terminal.

    Of no key on a system that has no ``termios``, which is Windows.

    The terminal is changed only while this process is in the foreground, and is as it was once
    this is closed and while the process is stopped (Ctrl-Z). In the background nothing is read, so
    that nothing stops the process; when it comes back it goes on.

    Args:
        pressed: called with one character, on a thread of its own.
        cursor: shows or hides the cursor, for as long as the process is stopped.
    """

    def __init__(self, pressed: Callable[[str], None], cursor: Callable[[bool], object]) -> None:
        self._pressed = pressed
        self._cursor = cursor
        self._lock = threading.RLock()
        self._before: list[Any] | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._terminal = _terminal()
        self._closed = threading.Event()
        self._away = False
        self._thread = threading.Thread(target=self._watch, name="keys", daemon=True)

    @property
    def reads(self) -> bool:
        """Whether there is a terminal to read from."""
        return self._terminal is not None

    def start(self) -> None:
        """Begin, where there is a terminal. Only from the main thread, as signals are handled."""
        if self._terminal is None:
            return
        for number in (getattr(signal, name) for name in LEAVING):
            # what is ignored stays so
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, self._leave)
        self._thread.start()

    def close(self) -> None:
        """Give the terminal back; harmless when called twice, or before the start."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._give_back()
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _watch(self) -> None:
        # Blocked, these two stop nobody: what they are for fails with an error instead.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU})
        while not self._closed.is_set():
            for key in self._read():
                self._pressed(key)

    def _read(self) -> str:
        """What was pressed, after a short wait; nothing of a key that sends several characters."""
        assert self._terminal is not None
        import termios

        # An error: it was closed, or somebody else's before it could be read.
        with suppress(OSError, termios.error):
            if self._take():
                select.select([self._terminal], [], [], LOOK_SECONDS)
                with self._lock:
                    pressed = os.read(self._terminal, 64) if self._take() else b""
                return "" if pressed.startswith(ESCAPE) else pressed.decode("ascii", "replace")
        self._closed.wait(LOOK_SECONDS)
        return ""

    def _take(self) -> bool:
        """Have the terminal tell of single keys; whether it is this process's to read.

        A shell may have changed it in between, so what it is like is looked at each time.
        """
        import termios

        assert self._terminal is not None
        with self._lock:
            if self._away or not self._in_front():
                return False
            modes = termios.tcgetattr(self._terminal)
            if modes[LOCAL_MODES] & termios.ICANON:
                self._before = modes
                termios.tcsetattr(self._terminal, termios.TCSANOW, _by_key(modes))
            return True

    def _give_back(self) -> None:
        if self._terminal is None:
            return
        import termios

        with self._lock:
            before, self._before = self._before, None
            if before is not None and self._in_front():
                termios.tcsetattr(self._terminal, termios.TCSANOW, before)

    def _in_front(self) -> bool:
        """Whether the shell has put this process in the foreground of its terminal."""
        assert self._terminal is not None
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return False  # it is closed, or no terminal of this process's session

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Do what the signal asks for, with the terminal as it was."""
        self._away = True
        self._give_back()
        self._cursor(True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # continued
        signal.signal(number, self._leave)
        self._cursor(False)
        self._away = False


def _by_key(modes: list[Any]) -> list[Any]:
    """The modes of a terminal that echoes nothing, and of which a read returns at once."""
    import termios

    local = modes[LOCAL_MODES] & ~(termios.ICANON | termios.ECHO)
    characters = list(modes[CHARACTERS])
    characters[termios.VMIN], characters[termios.VTIME] = 0, 0
    return [*modes[:LOCAL_MODES], local, *modes[LOCAL_MODES + 1 : CHARACTERS], characters]


def _terminal() -> int | None:
    """The descriptor of standard input, if it is a terminal."""
    if find_spec("termios") is None:
        return None
    try:
        number = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None  # there is none, or what stands in its place has no descriptor
    return number if os.isatty(number) else None
