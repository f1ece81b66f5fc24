"""Record a command in a terminal as an animated SVG: what it really printed, when it printed it.

It needs pyte (``pip install pyte``), which interprets the terminal's escape sequences:

    python docs/pictures/record.py docs/pictures/demo.svg swarm-node demo

Frames are taken once per second and played at ``SPEED``. Lines that stay the same are stored once.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import sys
import termios
import time
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

COLUMNS, ROWS = 118, 20
EVERY, SPEED, HOLD = 1.0, 3.0, 5.0  # seconds between frames, replay speed, seconds of the last one
WIDTH, HEIGHT, FONT = 8.4, 18, 14  # of a character, in pixels
PALETTE = {
    "default": "#d8dee9", "black": "#4c566a", "red": "#e06c75", "green": "#98c379",
    "brown": "#e5c07b", "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2",
    "white": "#eceff4", "brightblack": "#7b88a1",
}  # fmt: skip


class Run(NamedTuple):
    """Adjacent characters of one style."""

    column: int
    text: str
    color: str
    bold: bool


Line = tuple[Run, ...]
Frame = tuple[float, tuple[Line, ...]]


def styled(screen: pyte.Screen, row: int) -> Line:
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    runs, column = [], 0
    for (color, bold), group in groupby(cells, lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in group)
        shown = PALETTE.get(color, PALETTE["default"])
        for word in re.finditer(r"\S+(?: \S+)*", text):
            runs.append(Run(column + word.start(), word[0], shown, bold))
        column += len(text)
    return tuple(runs)


def record(command: list[str]) -> list[Frame]:
    """Run ``command`` in a terminal; return its distinct screens with their times in seconds."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    stream.feed(f"$ {shlex.join(command)}\r\n".encode())
    began, due, frames, ended = time.monotonic(), 0.0, list[Frame](), False
    while not ended:
        if select.select([terminal], [], [], EVERY / 5)[0]:
            try:
                stream.feed(os.read(terminal, 65536))
            except OSError:  # the command has ended
                ended = True
        now = time.monotonic() - began
        if now >= due or ended:
            lines = tuple(styled(screen, row) for row in range(ROWS))
            if not frames or frames[-1][1] != lines:
                frames.append((now, lines))
            due = now + EVERY
    os.waitpid(child, 0)
    return frames


def drawn(line: Line) -> str:
    def text(run: Run) -> str:
        bold = ' font-weight="bold"' if run.bold else ""
        width = f'textLength="{len(run.text) * WIDTH:.0f}"'
        place = f'x="{run.column * WIDTH:.0f}" {width} fill="{run.color}"{bold}'
        return f"<text {place}>{escape(run.text)}</text>"

    return "".join(map(text, line))


def svg(frames: list[Frame], title: str) -> str:
    """Draw the frames beside each other, and move them past the window in steps."""
    width, height = round(COLUMNS * WIDTH) + 20, ROWS * HEIGHT + 20
    names = {line: f"l{at}" for at, line in enumerate({line: 0 for _, f in frames for line in f})}
    whole = frames[-1][0] / SPEED + HOLD
    steps = "".join(
        f"{100 * at / SPEED / whole:.2f}%{{transform:translateX({-index * width}px)}}"
        for index, (at, _) in enumerate(frames)
    )
    screens = "".join(
        f'<use href="#{names[line]}" x="{index * width + 10}" y="{row * HEIGHT + 24}"/>'
        for index, (_, lines) in enumerate(frames)
        for row, line in enumerate(lines)
        if line
    )
    shapes = "".join(f'<g id="{key}">{drawn(line)}</g>' for line, key in names.items() if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(title)}</title><style>#f{{animation:f {whole:.1f}s "
        f"step-end infinite}}@keyframes f{{{steps}}}</style><defs>{shapes}</defs>"
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e222a"/>'
        f'<g id="f" font-family="monospace" font-size="{FONT}">{screens}</g></svg>\n'
    )


if __name__ == "__main__":
    path, *command = sys.argv[1:]
    Path(path).write_text(svg(record(command), shlex.join(command)), encoding="utf-8")
