"""What strangers wrote, in every place where the page shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.chromium import Browser
from tests.dashboard.hostile_texts import TEXTS
from tests.dashboard.made_run import fill, status_of
from tests.node.dashboard.browser import Site, served

pytestmark = pytest.mark.browser

MOST_HEADER = 260
"""Pixels of the header on a desktop and on a phone, whatever a swarm is called."""


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Site]:
    fill(tmp_path / "run", names=TEXTS)
    with served(tmp_path / "run") as found:
        yield found


def test_there_are_two_hundred_of_them() -> None:
    assert len(set(TEXTS)) >= 200


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_groups_of_the_hostile_are_text_in_their_place(
    browser: Browser, hostile: Site, screen: str
) -> None:
    getattr(browser, screen)()
    browser.open(hostile.told[-1], "rollouts")
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
    browser.assert_harmless(hostile.port)


@pytest.mark.parametrize("view", ["learning", "lineage", "swarm", "health"])
def test_other_views_of_a_hostile_swarm_hold(browser: Browser, hostile: Site, view: str) -> None:
    browser.open(hostile.told[-1], view)
    browser.until("return document.querySelector('.chart canvas, tbody tr, .finding')")
    for turn in (browser.desktop, browser.phone):
        turn()
        browser.assert_harmless(hostile.port)


def test_whatever_a_swarm_is_called_the_page_stays_as_it_is(
    browser: Browser, hostile: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.dashboard.run_view.LOOK_SECONDS", 0.05)  # two hundred looks follow
    browser.open(hostile.told[-1], "swarm")
    status = status_of(hostile.folder)
    for at, text in enumerate(TEXTS):
        reach = {"way": "relayed", "cause": text, "remedy": text}
        news = {"swarm_name": f"{at} {text}", "reach": reach, "time": 1.8e9 + at}
        hostile.folder.write_status({**status, **news})
        name = "document.querySelector('.who strong').innerText"
        browser.until(f"return {name}.startsWith(arguments[0])", str(at))
        assert browser.wrong("overflow") == [], text[:200]
        assert browser.run("return document.querySelector('header').offsetHeight") < MOST_HEADER
    browser.assert_harmless(hostile.port)
