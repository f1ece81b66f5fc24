import pytest

from tests.dashboard.chromium import Browser
from tests.dashboard.made_run import status_of
from tests.node.dashboard.browser import Site, write_rounds

pytestmark = pytest.mark.browser

NAMED = "return document.querySelector('.who strong')?.innerText === arguments[0]"
ROUND = "return document.querySelector('#round')?.innerText === arguments[0]"
ROWS = "return document.querySelectorAll('.row').length === arguments[0]"
OLDER = "document.querySelector('.split > div > button').click()"
LOCAL = "document.querySelector(`[aria-label='origin'] button:nth-of-type(2)`).click()"
ALL_LOCAL = """
return [...document.querySelectorAll('.row .origin')].every((each) => each.innerText === 'local')
"""
TYPED = """
const box = document.querySelector('.filters input[type=search]');
box.value = arguments[0];
box.dispatchEvent(new Event('input', { bubbles: true }));
"""
NAMES = [f"family-{number}" for number in range(40)]


def test_late_response_does_not_overwrite_newer_data(browser, site):
    browser.hold()
    browser.open(site.told[-1])
    browser.until("return window.held > 1")
    renamed = {"swarm_name": "renamed since", "time": 1.8e9}
    site.folder.write_status({**status_of(site.folder), **renamed})
    write_rounds(site.folder, [121], reward_local=lambda _: 1.0)
    browser.until(NAMED, "renamed since")
    browser.until(ROUND, "121")
    browser.let_go()
    label = browser.until("return document.querySelector('#reward .plot')?.ariaLabel")
    assert browser.run(NAMED, "renamed since")
    assert browser.run(ROUND, "121")
    assert "round 121" in label


def ask_for_older_and_wait(browser: Browser, site: Site) -> None:
    """Show the newest groups, then request older ones and delay the answer."""
    browser.hold()
    browser.open(site.told[-1], "rollouts")
    browser.let_go()
    browser.until(ROWS, 20)
    browser.run("window.hold()")
    browser.run(OLDER)


def test_duplicate_requests_add_older_groups_once(browser, site):
    ask_for_older_and_wait(browser, site)
    browser.run(OLDER)
    browser.let_go()
    assert browser.run(ROWS, 40)


def test_page_drops_responses_for_a_previous_filter(browser, site):
    ask_for_older_and_wait(browser, site)
    browser.run("window.pass()")
    browser.run(LOCAL)
    browser.until(ALL_LOCAL)
    browser.let_go()
    assert browser.run(ALL_LOCAL)
    assert browser.run(ROWS, 20)


def test_typed_search_keeps_the_origin_filter(browser, site):
    browser.open(site.told[-1], "rollouts")
    browser.until(ROWS, 20)
    browser.run(TYPED, "family-7")
    browser.run(LOCAL)
    browser.until(ROWS, 1)
    assert browser.run(ALL_LOCAL)
