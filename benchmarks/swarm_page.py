"""How long the page of a swarm takes to appear and to redraw, with much history and many authors.

Run it as ``python benchmarks/swarm_page.py [--points 2000] [--authors 500] [--json]`` where
Chromium and its driver are installed. A redraw is the time from a press, on a switch that changes
every chart or on the head of a column that turns the list of authors around, until the browser has
painted and is idle again; frames it waits for are in it. Of the authors a hundred are seen at once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

from dashboard_page import PAINTED, REDRAW, TURNS
from output import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.dashboard.chromium import Browser, missing
from tests.dashboard.swarm_page.made_swarm import hosted, made

PRESSED = {
    "swarm": ".choice button[aria-pressed='false']:last-of-type, .choice button:nth-of-type(2)",
    "authors": "th:nth-of-type(4) button",
}
SHOWN = "return document.querySelectorAll('.chart canvas, tbody tr').length >= arguments[0]"


def measure(points: int, authors: int) -> dict[str, float]:
    """Milliseconds by name, the median of some turns."""
    told: dict[str, float] = {"points": points, "authors": authors}
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as profile:
        page = made(points, authors)
        with hosted(Path(place) / "www", page) as host, closing(Browser(Path(profile))) as browser:
            for view, pressed in PRESSED.items():
                paints = []
                for _ in range(TURNS):
                    browser.open(host.url, view)
                    browser.until(SHOWN, 5 if view == "swarm" else min(authors, 100))
                    paints.append(browser.until(PAINTED))
                times = [browser.driver.execute_async_script(REDRAW, pressed) for _ in range(TURNS)]
                told[f"{view}: first paint, ms"] = round(median(paints))
                told[f"{view}: redraw, ms"] = round(median(times))
                told[f"{view}: longest redraw, ms"] = round(max(times))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2_000)
    parser.add_argument("--authors", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    show(measure(options.points, options.authors), as_json=options.json)


if __name__ == "__main__":
    main()
