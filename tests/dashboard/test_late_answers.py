"""News of the stream that comes before an older answer does."""

from __future__ import annotations

import pytest

from tests.dashboard.chromium import Browser
from tests.dashboard.made_run import status_of
from tests.node.dashboard.browser import Site, write_rounds

pytestmark = pytest.mark.browser

NAMED = "return document.querySelector('.who strong')?.innerText === arguments[0]"
ROUND = "return document.querySelector('#round')?.innerText === arguments[0]"


def test_an_answer_that_comes_late_takes_nothing_back(browser: Browser, site: Site) -> None:
    browser.hold()
    browser.open(site.told[-1])
    browser.until("return window.held > 1")
    renamed = {"swarm_name": "renamed since", "time": 1.8e9}
    site.folder.write_status({**status_of(site.folder), **renamed})
    write_rounds(site.folder, [121], reward_own=lambda _: 1.0)
    browser.until(NAMED, "renamed since")
    browser.until(ROUND, "121")
    browser.let_go()
    label = browser.until("return document.querySelector('#reward .plot')?.ariaLabel")
    assert browser.run(NAMED, "renamed since")
    assert browser.run(ROUND, "121")
    assert "round 121" in label
