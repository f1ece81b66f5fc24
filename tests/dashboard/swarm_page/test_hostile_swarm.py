"""What mallory calls a family, a model, a version, a reason and itself, on the page of a swarm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.chromium import Browser
from tests.dashboard.hostile_texts import TEXTS
from tests.dashboard.swarm_page.laid_out import Host, hosted
from tests.dashboard.swarm_page.made_swarm import key, made

pytestmark = pytest.mark.browser

OWN = "<meta http-equiv="
"""The page's own security policy, which is the one such element that it may have."""
MOST_HEADER = 260


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Host]:
    with hosted(tmp_path / "www", made(60, len(TEXTS), TEXTS)) as found:
        yield found


def harmless(browser: Browser, host: Host) -> None:
    """Nothing ran, was made, or was asked for, and all is where it was."""
    assert browser.run("return window.executed ?? null") is None
    (policy,) = browser.wrong("foreign")
    assert policy.startswith(OWN)
    assert browser.run(
        "return document.querySelector('meta[http-equiv]').parentElement.tagName"
    ) == ("HEAD")
    assert browser.wrong("overflow") == []
    assert browser.errors() == []
    assert browser.hosts() == {f"127.0.0.1:{host.port}"}


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_a_swarm_of_the_hostile_is_text_in_its_place(
    browser: Browser, hostile: Host, screen: str
) -> None:
    getattr(browser, screen)()
    browser.open(hostile.url, "swarm")
    browser.until("return document.querySelectorAll('.chart canvas').length === 5")
    assert browser.run("return document.querySelectorAll('tbody tr').length") > 3 * len(TEXTS)
    harmless(browser, hostile)
    browser.turn("authors")
    for shown in range(100, len(TEXTS), 100):
        browser.until("return document.querySelectorAll('tbody tr').length === arguments[0]", shown)
        browser.run("document.querySelector('.more').click()")
    browser.until(
        "return document.querySelectorAll('tbody tr').length === arguments[0]", len(TEXTS)
    )
    harmless(browser, hostile)


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_the_pages_of_hostile_authors_hold(browser: Browser, hostile: Host, screen: str) -> None:
    getattr(browser, screen)()
    browser.open(hostile.url, "authors")
    for at in range(len(TEXTS)):
        browser.run("location.hash = arguments[0]", f"#/author/{key(at)}")
        browser.until(
            "return document.querySelector('.person code')?.innerText === arguments[0]", key(at)
        )
        assert browser.wrong("overflow") == [], TEXTS[at][:200]
    harmless(browser, hostile)


def test_whatever_a_swarm_is_called_its_page_stays_as_it_is(
    browser: Browser, hostile: Host
) -> None:
    page = made(points=3)
    browser.phone()
    browser.open(hostile.url, "authors")
    for at, text in enumerate(TEXTS):
        page["swarm"]["swarm"]["name"] = f"{at} {text}"
        hostile.tell(page)
        browser.driver.refresh()
        browser.until(
            "return document.querySelector('h1')?.innerText.startsWith(arguments[0])", f"{at} "[:-1]
        )
        assert browser.wrong("overflow") == [], text[:200]
        assert browser.run("return document.querySelector('header').offsetHeight") < MOST_HEADER
    harmless(browser, hostile)


@pytest.mark.parametrize(
    "hash", ["#/author/<img src=x onerror=window.executed=1>", "#/constructor", "#/author"]
)
def test_an_address_that_somebody_made_up_leads_nowhere(
    browser: Browser, hostile: Host, hash: str
) -> None:
    browser.open(hostile.url, "authors")
    browser.run("location.hash = arguments[0]", hash)
    browser.until("return document.querySelector('.empty, .chart')")
    harmless(browser, hostile)
