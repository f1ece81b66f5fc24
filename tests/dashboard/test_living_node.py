import re
import signal
from pathlib import Path

import pytest

from tests.dashboard.chromium import VIEWS, until
from tests.end_to_end.commands import QUICK, Command
from tests.ports import lasting_port

pytestmark = [pytest.mark.browser, pytest.mark.processes]

ROUND = "return Number(document.querySelector('#round').innerText.replace(/\\D/g, ''))"
LOADED = "return window.loaded ??= Math.random()"


class Living:
    """A node that serves its page on a fixed port and can be restarted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = lasting_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.node = self.started()

    def started(self) -> Command:
        served = f'--set=monitor.dashboard="127.0.0.1:{self.port}"'
        node = Command(self.folder, "join", *QUICK, served)
        node.until(lambda: any(self.url in line for line in node.out))
        return node

    def again(self) -> None:
        self.node.close()
        self.node = self.started()


@pytest.fixture
def living(tmp_path):
    instance = Living(tmp_path)
    yield instance
    instance.node.close()


def test_page_shows_20_rounds_without_reload(browser, living):
    browser.open(living.url)
    loaded = browser.run(LOADED)
    first = browser.until(ROUND)
    label = "return document.querySelector('#reward .plot').ariaLabel"
    before = browser.until(label)
    until(lambda: browser.run(ROUND) >= first + 20, browser.text)
    assert browser.run(LOADED) == loaded
    until(lambda: browser.run(label) != before, browser.text)
    for view in VIEWS:
        browser.turn(view)
        at = browser.run(ROUND)
        until(lambda at=at: browser.run(ROUND) > at, browser.text)  # type: ignore[misc]
    assert browser.run(LOADED) == loaded
    browser.assert_quiet(living.port)


def test_page_reports_a_stopped_node_and_reconnects(browser, living):
    browser.open(living.url)
    loaded = browser.run(LOADED)
    browser.until(ROUND)
    assert living.node.stop(signal.SIGTERM) == 0
    browser.until("return document.querySelector('#connection').innerText === 'reconnecting'")
    told = browser.until("return document.querySelector('.banner.lost')?.innerText")
    assert "swarm-node join" in told
    last = living.node.records()[-1].round
    living.again()
    browser.until("return document.querySelector('#connection').innerText === 'live'")
    browser.until("return document.querySelector('.banner.lost') === null")
    until(lambda: browser.run(ROUND) > last, browser.text)
    assert browser.run(LOADED) == loaded
    assert browser.errors(gone=True) == []


def test_page_shows_log_probs_of_the_latest_completion(browser, living):
    browser.open(living.url, "rollouts")
    browser.until("return document.querySelectorAll('.row').length")
    pressed = """
    const tint = [...document.querySelectorAll('button')].find((b) => b.innerText === 'log-prob');
    tint?.click();
    return document.querySelectorAll('pre .token').length;
    """
    browser.until(pressed)
    told = browser.run("return document.querySelector('pre .token').title")
    assert re.match(r"log-prob −?-?\d", told), told
    assert browser.errors() == []
