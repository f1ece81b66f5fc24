"""The swarm page shows hostile names, models, versions and reasons as text."""

import pytest

from tests.dashboard.chromium import Browser
from tests.dashboard.hostile_texts import TEXTS
from tests.dashboard.swarm_page.made_swarm import Host, hosted, key, made

pytestmark = pytest.mark.browser

OWN = "<meta http-equiv="
"""Start of the page's own security policy, the only such element allowed."""
MAX_HEADER = 260
SHOWN = "document.querySelector('.person code')?.innerText"
NAMED = "document.querySelector('h1')?.innerText"


@pytest.fixture
def hostile(tmp_path):
    with hosted(tmp_path / "www", made(60, len(TEXTS), TEXTS)) as server:
        yield server


def harmless(browser: Browser, host: Host) -> None:
    browser.assert_harmless(host.port, own=1)
    (policy,) = browser.wrong("foreign")
    assert policy.startswith(OWN)
    head = "return document.querySelector('meta[http-equiv]').parentElement.tagName"
    assert browser.run(head) == "HEAD"


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_swarm_page_shows_hostile_names_as_text(browser, hostile, screen):
    getattr(browser, screen)()
    browser.open(hostile.url, "swarm")
    browser.count(".chart canvas", 5)
    assert browser.run("return document.querySelectorAll('tbody tr').length") > 3 * len(TEXTS)
    harmless(browser, hostile)
    browser.turn("authors")
    for shown in range(100, len(TEXTS), 100):
        browser.count("tbody tr", shown)
        browser.click(".more")
    browser.count("tbody tr", len(TEXTS))
    harmless(browser, hostile)


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_author_page_escapes_hostile_names(browser, hostile, screen):
    getattr(browser, screen)()
    browser.open(hostile.url, "authors")
    for at in range(len(TEXTS)):
        browser.run("location.hash = arguments[0]", f"#/author/{key(at)}")
        browser.until(f"return {SHOWN} === arguments[0]", key(at))
        assert browser.wrong("overflow") == [], TEXTS[at][:200]
    harmless(browser, hostile)


def test_hostile_swarm_name_keeps_the_page_layout(browser, hostile):
    page = made(points=3)
    browser.phone()
    browser.open(hostile.url, "authors")
    for at, text in enumerate(TEXTS):
        page["swarm"]["swarm"]["name"] = f"{at} {text}"
        hostile.tell(page)
        browser.driver.refresh()
        browser.until(f"return {NAMED}.startsWith(arguments[0])", str(at))
        assert browser.wrong("overflow") == [], text[:200]
        assert browser.run("return document.querySelector('header').offsetHeight") < MAX_HEADER
    harmless(browser, hostile)


@pytest.mark.parametrize(
    "hash", ["#/author/<img src=x onerror=window.executed=1>", "#/constructor", "#/author"]
)
def test_page_handles_invalid_url_fragments(browser, hostile, hash):
    browser.open(hostile.url, "authors")
    browser.run("location.hash = arguments[0]", hash)
    browser.until("return document.querySelector('.empty, .chart')")
    harmless(browser, hostile)
