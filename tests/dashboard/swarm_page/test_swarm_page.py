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
"""What each shows once it has everything."""
JOIN = f"swarm-node join --peers {ADDRESS}"
STATUS = "document.querySelector('.line [role=status]').innerText"
READ = "return document.querySelector('main').innerText"
BANNER = "return document.querySelector('.banner')?.innerText ?? null"
LOADED = "return window.loaded ??= Math.random()"
FIRST = "return document.querySelector('tbody tr').innerText"


@pytest.fixture
def host(tmp_path):
    """The page of a swarm of twelve, of which the observer told a minute ago."""
    with hosted(tmp_path / "www", made()) as found:
        yield found


DRAWN = """
const canvas = document.querySelector('#nodes canvas'), told = canvas.toDataURL();
const blank = document.createElement('canvas');
[blank.width, blank.height] = [canvas.width, canvas.height];
"""


def look(browser: Browser, host: Host, view: str = "swarm") -> None:
    browser.open(host.url, view)
    browser.until(SHOWS[view])


@pytest.mark.parametrize("theme", THEMES)
def test_every_view_of_a_swarm_can_be_read_on_any_screen(browser, host, pictures, theme):
    for view in SHOWS:
        look(browser, host, view)
        browser.theme(theme)
        name = f"public-{view.split('/')[0]}-{theme}"
        browser.assert_readable_everywhere(
            lambda screen, name=name: pictures / f"{name}-{screen}.png", view
        )
    browser.assert_quiet(host.port)


def test_the_page_says_how_to_join_and_what_is_whose_word(browser, host):
    look(browser, host)
    told = browser.run(READ)
    for expected in (JOIN, "sampled, fetched and scored", "not verified", "rewards differ from"):
        assert expected in told
    assert browser.run("return document.title") == "Swarm · sorting together"
    assert "Loading the" not in browser.text()


def test_the_line_is_copied_where_the_browser_gives_no_clipboard(browser, host):
    look(browser, host)
    browser.run("""
        Object.defineProperty(navigator, 'clipboard', { value: undefined });
        document.addEventListener('copy', () => { window.copied = String(getSelection()); });
    """)
    browser.driver.find_element("css selector", ".line button").click()
    assert browser.until("return window.copied") == JOIN
    browser.until(f"return {STATUS} === 'Copied.'")


def test_the_line_is_selected_where_nothing_may_be_copied(browser, host):
    look(browser, host)
    browser.run("""
        navigator.clipboard.writeText = () => Promise.reject(new Error('denied'));
        document.execCommand = () => false;
        document.querySelector('.line button').click();
    """)
    browser.until(f"return /^Selected/.test({STATUS})")
    assert browser.run("return String(getSelection())") == JOIN


def test_a_bucket_that_has_just_begun_does_not_make_the_latest_rate_a_low_one(browser, tmp_path):
    page = made(points=2)
    now = page["swarm"]["time"]
    page["history"] |= {"time": [now - 720, now - 120], "offered": [60, 60]}
    page["swarm"]["since"] = now - 420
    with hosted(tmp_path / "www", page) as host:
        look(browser, host)
        shown = browser.run("return document.querySelector('#groups .plot').ariaLabel")
        assert "offered: 720 at" in shown, "60 groups in the five minutes that were observed"
        latest = browser.run("return document.querySelector('#groups .legend b').innerText")
        assert latest == "1,800", "60 groups in two minutes"


def test_what_nobody_should_paste_into_a_terminal_is_no_line_to_copy(browser, tmp_path):
    page = made()
    page["swarm"]["join"] = [f"{ADDRESS}; rm -rf ~", f"{ADDRESS} $(id)", f"{ADDRESS}\n/x/y", "-h"]
    with hosted(tmp_path / "www", page) as host:
        look(browser, host)
        assert browser.run("return document.querySelector('.join code')") is None
        assert "Ask the operator of this swarm" in browser.run(READ)


def test_authors_are_found_by_name_and_key_and_sorted_by_any_column(browser, host):
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


def test_an_author_has_a_page_under_an_address_of_its_own(browser, host):
    look(browser, host, "authors")
    browser.click("tbody a[href$='${arguments[0]}']", key(1))
    told = browser.until("return document.querySelector('.person')?.innerText")
    for expected in ("node 1", "trains at night", key(1), "0.250", "rewards differ"):
        assert expected in told
    assert browser.run("return document.activeElement.id") == "main"
    assert browser.run("return document.title") == "node 1 · sorting together"
    browser.open(host.url, "author/00")
    browser.until("return document.querySelector('.empty')")
    assert browser.errors() == []


def test_a_swarm_without_anybody_says_what_to_expect(browser, tmp_path):
    with hosted(tmp_path / "www", empty()) as host:
        browser.open(host.url, "swarm")
        told = browser.run(READ)
        for each in ("No nodes", "No measurements", "No verified", "No refused", "operator"):
            assert each in told
        browser.turn("authors")
        assert "No authors yet" in browser.until(READ)
        assert browser.errors() == []


@pytest.mark.parametrize("points", [1, 2])
def test_a_history_that_has_just_begun_is_drawn(browser, tmp_path, points):
    with hosted(tmp_path / "www", made(points)) as host:
        look(browser, host)
        assert browser.errors() == []


def test_hours_in_which_nobody_looked_are_a_gap(browser, host):
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


def test_old_figures_are_said_to_be_old(browser, host):
    page = made(every=10)
    page["swarm"]["time"] -= 3 * 3600
    host.tell(page)
    look(browser, host)
    assert "has not reported for 3 h" in browser.until(BANNER)
    page["swarm"]["time"] = int(time.time())
    host.tell(page)
    browser.until(f"{BANNER} === null".replace("?? null === null", "=== undefined"))


def test_what_is_told_anew_arrives_without_a_reload(browser, host):
    host.tell(made(every=1))
    look(browser, host)
    loaded = browser.run(LOADED)
    page = made(authors=13, every=1)
    page["swarm"]["time"] += 1
    host.tell(page)
    browser.until("return document.querySelector('#nodes').innerText === '13'")
    assert browser.run(LOADED) == loaded


def test_a_host_that_is_gone_for_a_while_is_told_and_asked_again(browser, host):
    host.tell(made(every=1))
    look(browser, host)
    host.close()
    told = browser.until(BANNER)
    assert "has not answered since" in told and "retries automatically" in told
    assert browser.run(SHOWS["swarm"])
    page = made(authors=14, every=1)
    page["swarm"]["time"] += 1
    host.tell(page)
    host.up()
    browser.until("return document.querySelector('#nodes').innerText === '14'")
    browser.until("return document.querySelector('.banner') === null")
    assert browser.errors(gone=True) == []


def test_a_page_that_nobody_sees_asks_for_nothing(browser, host):
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


def test_two_thousand_points_and_five_hundred_authors_are_drawn_whole(browser, tmp_path):
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
