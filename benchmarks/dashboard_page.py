"""How long the dashboard's page takes to appear and to redraw, with rounds by the thousand.

Run it as ``python benchmarks/dashboard_page.py [--rounds 10000] [--json]`` where Chromium and its
driver are installed. A redraw is the time from a press on a switch that changes every line until
the browser has painted the charts that are seen and is idle again; frames it waits for are in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

from output import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.dashboard.chromium import Browser, missing
from tests.dashboard.made_run import fill
from tests.node.dashboard.browser import served

TURNS = 9
REDRAW = """
const done = arguments[arguments.length - 1];
const pressed = document.querySelector(arguments[0]);
const begin = performance.now();
pressed.click();
requestAnimationFrame(() => requestAnimationFrame(() =>
  requestIdleCallback(() => done(performance.now() - begin))));
"""
SWITCH = '.choice button[aria-pressed="false"]'
PAINTED = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
DRAWN = "return document.querySelectorAll('.chart canvas').length"


def measure(rounds: int) -> dict[str, float]:
    """Milliseconds by name, the median of some turns, and how many charts there were."""
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as profile:
        fill(Path(place) / "run", rounds=rounds)
        with served(Path(place) / "run") as site, closing(Browser(Path(profile))) as browser:
            paints = []
            for _ in range(TURNS):
                browser.open(site.told[-1])
                browser.until(DRAWN)
                paints.append(browser.until(PAINTED))
            redraws = [browser.driver.execute_async_script(REDRAW, SWITCH) for _ in range(TURNS)]
            return {
                "rounds": rounds,
                "charts": browser.run(DRAWN),
                "first paint, ms": round(median(paints)),
                "redraw, ms": round(median(redraws)),
                "longest redraw, ms": round(max(redraws)),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    show(measure(options.rounds), as_json=options.json)


if __name__ == "__main__":
    main()
