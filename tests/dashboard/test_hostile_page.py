import pytest

from tests.dashboard.hostile_texts import TEXTS as NAMES
from tests.dashboard.made_run import status_of

pytestmark = pytest.mark.browser

MAX_HEADER = 260
"""Maximum header height in pixels on every screen, for any swarm name."""


def test_at_least_200_hostile_names():
    assert len(set(NAMES)) >= 200


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_rollouts_page_escapes_hostile_groups(browser, site, screen):
    getattr(browser, screen)()
    browser.open(site.told[-1], "rollouts")
    shown = 0
    while True:
        count = "return document.querySelectorAll('.row').length"
        rows = browser.until(count)
        for at in range(shown, rows):
            browser.run("document.querySelectorAll('.row')[arguments[0]].click()", at)
            row = "document.querySelectorAll('.row')[arguments[0]]"
            browser.until(f"return {row}.ariaPressed === 'true'", at)
            group = browser.run("return document.querySelector('.group').innerText")
            assert browser.wrong("overflow") == [], group[:300]
        if not browser.run("return document.querySelector('.split > div > button') !== null"):
            break
        shown = rows
        browser.click(".split > div > button")
        browser.until("return document.querySelectorAll('.row').length > arguments[0]", shown)
    assert rows >= 200
    browser.assert_harmless(site.port)


@pytest.mark.parametrize("view", ["learning", "lineage", "swarm", "health"])
def test_other_views_escape_hostile_text(browser, site, view):
    browser.open(site.told[-1], view)
    browser.until("return document.querySelector('.chart canvas, tbody tr, .finding')")
    for turn in (browser.desktop, browser.phone):
        turn()
        browser.assert_harmless(site.port)


def test_hostile_swarm_name_keeps_the_page_layout(browser, site, monkeypatch):
    monkeypatch.setattr("node.dashboard.run_view.LOOK_SECONDS", 0.05)  # The loop looks 200 times.
    browser.open(site.told[-1], "swarm")
    status = status_of(site.folder)
    for at, text in enumerate(NAMES):
        reach = {"way": "relayed", "cause": text, "remedy": text}
        news = {"swarm_name": f"{at} {text}", "reach": reach, "time": 1.8e9 + at}
        site.folder.write_status({**status, **news})
        name = "document.querySelector('.who strong').innerText"
        browser.until(f"return {name}.startsWith(arguments[0])", str(at))
        assert browser.wrong("overflow") == [], text[:200]
        assert browser.run("return document.querySelector('header').offsetHeight") < MAX_HEADER
    browser.assert_harmless(site.port)
