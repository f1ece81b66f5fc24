import time

import pytest

from protocol.identity import peer_id_of
from tests.dashboard.chromium import THEMES, Browser
from tests.dashboard.swarm_page.made_swarm import ADDRESS, Host, empty, hosted, key, made

pytestmark = pytest.mark.browser

SHOWS = {
    "swarm": "return document.querySelectorAll('.chart canvas').length === 5",
    "authors": "return document.querySelectorAll('tbody tr').length === 12",
    f"author/{key(0)}": "return document.querySelectorAll('.chart canvas').length === 2",
}
"""Condition under which each view is complete."""
JOIN = f"swarm-node join --peers {ADDRESS}"
STATUS = "document.querySelector('.line [role=status]').innerText"
READ = "return document.querySelector('main').innerText"
BANNER = "return document.querySelector('.banner')?.innerText ?? null"
LOADED = "return window.loaded ??= Math.random()"
FIRST = "return document.querySelector('tbody tr').innerText"


@pytest.fixture
def host(tmp_path):
    """Serve the page of a swarm with twelve authors."""
    with hosted(tmp_path / "www", made()) as server:
        yield server


DRAWN = """
const canvas = document.querySelector('#nodes canvas'), told = canvas.toDataURL();
const blank = document.createElement('canvas');
[blank.width, blank.height] = [canvas.width, canvas.height];
"""


def look(browser: Browser, host: Host, view: str = "swarm") -> None:
    browser.open(host.url, view)
    browser.until(SHOWS[view])


@pytest.mark.parametrize("theme", THEMES)
def test_swarm_views_are_readable_on_every_screen(browser, host, pictures, theme):
    for view in SHOWS:
        look(browser, host, view)
        browser.theme(theme)
        name = f"public-{view.split('/')[0]}-{theme}"
        browser.assert_readable_everywhere(
            lambda screen, name=name: pictures / f"{name}-{screen}.png", view
        )
    browser.assert_quiet(host.port)


def test_page_shows_join_command_and_data_sources(browser, host):
    look(browser, host)
    content = browser.run(READ)
    for expected in (JOIN, "sampled, fetched and scored", "not verified", "rewards differ from"):
        assert expected in content
    assert browser.run("return document.title") == "Swarm · sorting together"
    assert "Loading the" not in browser.text()


def test_join_command_is_copied_without_clipboard_api(browser, host):
    look(browser, host)
    browser.run("""
        Object.defineProperty(navigator, 'clipboard', { value: undefined });
        document.addEventListener('copy', () => { window.copied = String(getSelection()); });
    """)
    browser.driver.find_element("css selector", ".line button").click()
    assert browser.until("return window.copied") == JOIN
    browser.until(f"return {STATUS} === 'Copied.'")


def test_join_command_is_selected_if_copying_fails(browser, host):
    look(browser, host)
    browser.run("""
        navigator.clipboard.writeText = () => Promise.reject(new Error('denied'));
        document.execCommand = () => false;
        document.querySelector('.line button').click();
    """)
    browser.until(f"return /^Selected/.test({STATUS})")
    assert browser.run("return String(getSelection())") == JOIN


def test_latest_rate_accounts_for_partial_buckets(browser, tmp_path):
    page = made(points=2)
    now = page["swarm"]["time"]
    page["history"] |= {"time": [now - 720, now - 120], "offered": [60, 60]}
    page["swarm"]["since"] = now - 420
    with hosted(tmp_path / "www", page) as host:
        look(browser, host)
        shown = browser.run("return document.querySelector('#groups .plot').ariaLabel")
        assert "offered: 720 at" in shown, "60 groups in the five observed minutes are 720 per hour"
        latest = browser.run("return document.querySelector('#groups .legend b').innerText")
        assert latest == "1,800", "60 groups in two minutes are 1,800 per hour"


def test_page_hides_join_command_with_unsafe_addresses(browser, tmp_path):
    page = made()
    page["swarm"]["join"] = [f"{ADDRESS}; rm -rf ~", f"{ADDRESS} $(id)", f"{ADDRESS}\n/x/y", "-h"]
    with hosted(tmp_path / "www", page) as host:
        look(browser, host)
        assert browser.run("return document.querySelector('.join code')") is None
        assert "Ask the operator of this swarm" in browser.run(READ)


def test_author_table_filters_by_name_or_key_and_sorts(browser, host):
    look(browser, host, "authors")
    typed = """
        const field = document.querySelector('input');
        field.value = arguments[0];
        field.dispatchEvent(new Event('input', { bubbles: true }));
    """
    for asked in ("NODE 7", key(7)[:10], f"12D3KooW{key(7)[:6]}"):
        browser.run(typed, asked)
        browser.count("tbody tr", 1)
        assert peer_id_of(bytes.fromhex(key(7)))[8:16] in browser.run(FIRST)
    browser.run(typed, "nobody at all")
    browser.until("return document.querySelector('.empty')")
    browser.run(typed, "")
    browser.until(SHOWS["authors"])
    press = """
        const heads = [...document.querySelectorAll('th button')];
        heads.find((each) => each.innerText.startsWith(arguments[0])).click();
    """
    browser.run(press, "policy step")
    browser.until(f"{FIRST}.includes('111')")
    browser.run(press, "author")
    browser.until("return document.querySelector('th').ariaSort === 'ascending'")
    assert "3 more" in browser.run(READ)


def test_each_author_has_a_page_with_its_own_url(browser, host):
    look(browser, host, "authors")
    browser.click("tbody a[href$='${arguments[0]}']", key(1))
    content = browser.until("return document.querySelector('.person')?.innerText")
    for expected in ("node 1", "trains at night", key(1), "0.250", "rewards differ"):
        assert expected in content
    assert browser.run("return document.activeElement.id") == "main"
    assert browser.run("return document.title") == "node 1 · sorting together"
    browser.open(host.url, "author/00")
    browser.until("return document.querySelector('.empty')")
    assert browser.errors() == []


def test_empty_swarm_page_explains_missing_data(browser, tmp_path):
    with hosted(tmp_path / "www", empty()) as host:
        browser.open(host.url, "swarm")
        content = browser.run(READ)
        for each in ("No nodes", "No measurements", "No verified", "No refused", "operator"):
            assert each in content
        browser.turn("authors")
        assert "No authors yet" in browser.until(READ)
        assert browser.errors() == []


@pytest.mark.parametrize("points", [1, 2])
def test_page_draws_a_history_of_few_points(browser, tmp_path, points):
    with hosted(tmp_path / "www", made(points)) as host:
        look(browser, host)
        assert browser.errors() == []


def test_chart_shows_a_gap_for_unobserved_hours(browser, host):
    page = made(100, every=1)
    times = page["history"]["time"]
    page["history"]["time"] = [at - 36_000 * (place < 50) for place, at in enumerate(times)]
    host.tell(page)
    look(browser, host)
    browser.until(f"{DRAWN} return told !== blank.toDataURL()")
    before = browser.run(f"{DRAWN} return told")
    page["history"]["seconds"][49] = 36_600
    page["swarm"]["time"] += 1
    host.tell(page)
    browser.until(f"{DRAWN} return told !== '{before}'")


def test_page_warns_about_stale_data(browser, host):
    page = made(every=10)
    page["swarm"]["time"] -= 3 * 3600
    host.tell(page)
    look(browser, host)
    assert "has not reported for 3 h" in browser.until(BANNER)
    page["swarm"]["time"] = int(time.time())
    host.tell(page)
    browser.until(f"{BANNER} === null".replace("?? null === null", "=== undefined"))


def test_page_updates_without_a_reload(browser, host):
    host.tell(made(every=1))
    look(browser, host)
    loaded = browser.run(LOADED)
    page = made(authors=13, every=1)
    page["swarm"]["time"] += 1
    host.tell(page)
    browser.until("return document.querySelector('#nodes').innerText === '13'")
    assert browser.run(LOADED) == loaded


def test_page_reports_a_lost_host_and_reconnects(browser, host):
    host.tell(made(every=1))
    look(browser, host)
    host.close()
    content = browser.until(BANNER)
    assert "has not answered since" in content and "retries automatically" in content
    assert browser.run(SHOWS["swarm"])
    page = made(authors=14, every=1)
    page["swarm"]["time"] += 1
    host.tell(page)
    host.up()
    browser.until("return document.querySelector('#nodes').innerText === '14'")
    browser.until("return document.querySelector('.banner') === null")
    assert browser.errors(gone=True) == []


def test_hidden_page_sends_no_requests(browser, host):
    host.tell(made(every=1))
    look(browser, host)
    hide = "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
    turn = f"{hide} document.dispatchEvent(new Event('visibilitychange'));"
    browser.run(turn, True)
    entries = "performance.getEntriesByType('resource')"
    asked = f"return {entries}.filter((e) => /data/.test(e.name)).length"
    time.sleep(1)
    before = browser.run(asked)
    time.sleep(4)
    assert browser.run(asked) == before
    browser.run(turn, False)
    browser.until(f"{asked} > arguments[0]", before)


def test_page_renders_2000_points_and_500_authors(browser, tmp_path):
    with hosted(tmp_path / "www", made(2_000, 500)) as host:
        look(browser, host)
        browser.run("[...document.querySelectorAll('.choice button')].at(-1).click()")
        last = "document.querySelector('.choice button:last-of-type')"
        browser.until(f"return {last}.ariaPressed === 'true'")
        label = browser.run("return document.querySelector('#nodes .plot').ariaLabel")
        assert "Nodes by time" in label
        browser.turn("authors")
        for shown in (100, 200, 300, 400):
            browser.count("tbody tr", shown)
            browser.click(".more")
        browser.count("tbody tr", 500)
        assert browser.run("return document.querySelector('.more')") is None
        assert browser.wrong("overflow") == []
        assert browser.errors() == []
