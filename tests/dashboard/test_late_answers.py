import pytest

from tests.dashboard.chromium import Browser
from tests.dashboard.made_run import status_of
from tests.node.dashboard.browser import Site, write_rounds

pytestmark = pytest.mark.browser

NAMED = "return document.querySelector('.who strong')?.innerText === arguments[0]"
ROUND = "return document.querySelector('#round')?.innerText === arguments[0]"
ROWS = "return document.querySelectorAll('.row').length === arguments[0]"
OLDER = "document.querySelector('.split > div > button').click()"
OWN = "document.querySelector(`[aria-label='origin'] button:nth-of-type(2)`).click()"
ALL_OWN = """
return [...document.querySelectorAll('.row .origin')].every((each) => each.innerText === 'local')
"""
TYPED = """
const box = document.querySelector('.filters input[type=search]');
box.value = arguments[0];
box.dispatchEvent(new Event('input', { bubbles: true }));
"""
NAMES = [f"family-{number}" for number in range(40)]


def test_an_answer_that_comes_late_takes_nothing_back(browser, site):
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


def ask_for_older_and_wait(browser: Browser, site: Site) -> None:
    """Show the newest groups, with the older ones asked for and their answer kept back."""
    browser.hold()
    browser.open(site.told[-1], "rollouts")
    browser.let_go()
    browser.until(ROWS, 20)
    browser.run("window.hold()")
    browser.run(OLDER)


def test_older_groups_that_are_asked_for_twice_come_once(browser, site):
    ask_for_older_and_wait(browser, site)
    browser.run(OLDER)
    browser.let_go()
    assert browser.run(ROWS, 40)


def test_older_groups_of_a_filter_that_is_no_more_stay_away(browser, site):
    ask_for_older_and_wait(browser, site)
    browser.run("window.pass()")
    browser.run(OWN)
    browser.until(ALL_OWN)
    browser.let_go()
    assert browser.run(ALL_OWN)
    assert browser.run(ROWS, 20)


def test_a_filter_chosen_while_another_is_typed_stays(browser, site):
    browser.open(site.told[-1], "rollouts")
    browser.until(ROWS, 20)
    browser.run(TYPED, "family-7")
    browser.run(OWN)
    browser.until(ROWS, 1)
    assert browser.run(ALL_OWN)
