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


def harmless(browser: Browser, site: Site) -> None:
    """Nothing ran, was made, or was asked for."""
    assert browser.run("return window.executed ?? null") is None
    assert browser.wrong("foreign") == []
    assert browser.wrong("overflow") == []
    assert browser.errors() == []
    assert browser.hosts() == {f"127.0.0.1:{site.port}"}


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
            browser.until(
                "return document.querySelectorAll('.row')[arguments[0]].ariaPressed === 'true'", at
            )
            assert browser.wrong("overflow") == [], browser.run(
                "return document.querySelector('.group').innerText"
            )[:300]
        if not browser.run(
            "return Boolean([...document.querySelectorAll('.split > div > button')].length)"
        ):
            break
        shown = rows
        browser.run("document.querySelector('.split > div > button').click()")
        browser.until("return document.querySelectorAll('.row').length > arguments[0]", shown)
    assert rows >= 200
    harmless(browser, hostile)


@pytest.mark.parametrize("view", ["learning", "lineage", "swarm", "health"])
def test_other_views_of_a_hostile_swarm_hold(browser: Browser, hostile: Site, view: str) -> None:
    browser.open(hostile.told[-1], view)
    browser.until("return document.querySelector('.chart canvas, tbody tr, .finding')")
    for turn in (browser.desktop, browser.phone):
        turn()
        harmless(browser, hostile)


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
        browser.until(
            "return document.querySelector('.who strong').innerText.startsWith(arguments[0])",
            f"{at} "[:-1],
        )
        assert browser.wrong("overflow") == [], text[:200]
        assert browser.run("return document.querySelector('header').offsetHeight") < MOST_HEADER
    harmless(browser, hostile)
