"""Every dashboard view of a stopped run, in a real browser."""

from dataclasses import replace

import pytest

from tests.dashboard.chromium import THEMES, VIEWS, Browser, until
from tests.dashboard.made_run import AUTHORS, fill, made_group
from tests.node.dashboard.browser import Site, served, write_rounds

pytestmark = pytest.mark.browser

SHOWS = {
    "learning": "return document.querySelectorAll('.chart canvas').length >= 14",
    "rollouts": "return document.querySelectorAll('.row').length === 3",
    "lineage": "return document.querySelectorAll('tbody tr').length === 3",
    "swarm": "return document.querySelectorAll('.map g').length === 4",
    "health": "return document.querySelectorAll('.log, .finding').length > 7",
    "ask": "return document.querySelectorAll('.asking option').length === 2",
}
"""Condition under which each view is complete."""
PRESS = """
[...document.querySelectorAll('button')].find((each) => each.innerText === arguments[0]).click();
"""
PICTURE = "return document.querySelector('#{} canvas').toDataURL()"
CHANGED = "return document.querySelector('#{} canvas').toDataURL() !== arguments[0]"


def look(browser: Browser, site: Site, view: str) -> None:
    browser.open(site.told[-1], view)
    browser.until(SHOWS[view])


@pytest.mark.parametrize("theme", THEMES)
def test_views_are_readable_on_every_screen(browser, site, pictures, theme):
    for view in VIEWS:
        look(browser, site, view)
        browser.theme(theme)
        browser.assert_readable_everywhere(
            lambda screen, name=f"{view}-{theme}": pictures / f"{name}-{screen}.png", view
        )
        assert "Loading the" not in browser.text()
    browser.assert_quiet(site.port)


def test_theme_persists_across_page_loads(browser, site):
    look(browser, site, "learning")
    browser.click(".theme")
    theme = "return document.documentElement.dataset.theme"
    chosen, button = browser.run(theme), "document.querySelector('.theme').innerText"
    browser.until(f"return {button}.includes(arguments[0])", chosen)
    look(browser, site, "health")
    assert chosen != "system"
    assert browser.run(theme) == chosen


def test_page_supports_keyboard_navigation(browser, site):
    from selenium.webdriver.common.keys import Keys

    look(browser, site, "learning")
    pressed = browser.driver.switch_to.active_element
    pressed.send_keys(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    for _ in range(4):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.run("return document.activeElement.hash") == "#/lineage"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.until(SHOWS["lineage"])


def test_charts_support_keyboard_reading_and_zoom(browser, site):
    from selenium.webdriver.common.keys import Keys

    look(browser, site, "learning")
    browser.run("document.querySelector('#reward .plot').focus()")
    plot = browser.driver.switch_to.active_element
    assert "held-out" in str(plot.get_attribute("aria-label"))
    for _ in range(3):
        plot.send_keys(Keys.ARROW_LEFT)
    for pattern, place in (("round 11\\d: local", "[aria-live]"), ("round 11", ".where")):
        text = f"document.querySelector('#reward {place}').textContent"
        browser.until(f"return /{pattern}/.test({text})")
    before = browser.run(PICTURE.format("reward"))
    plot.send_keys("+")
    browser.until(CHANGED.format("reward"), before)
    plot.send_keys("0")
    browser.until(CHANGED.format("reward").replace("!==", "==="), before)


@pytest.mark.parametrize("button", ["log", "20"])
def test_log_and_smoothing_buttons_redraw_chart(browser, site, button):
    look(browser, site, "learning")
    before = browser.run(PICTURE.format("entropy"))
    browser.run(PRESS, button)
    browser.until(CHANGED.format("entropy"), before)
    assert browser.errors() == []


def test_legend_button_hides_its_line(browser, site):
    look(browser, site, "learning")
    before = browser.run(PICTURE.format("reward"))
    browser.click("#reward .legend button")
    browser.until(CHANGED.format("reward"), before)
    pressed = "return document.querySelector('#reward .legend button').ariaPressed"
    assert browser.run(pressed) == "false"


def test_groups_filter_by_origin_and_color_by_log_prob(browser, site):
    look(browser, site, "rollouts")
    browser.run(PRESS, "refused")
    browser.count(".row", 1)
    reason = "document.querySelector('.reason').innerText"
    browser.until(f"return {reason}.startsWith('Refused: sorting')")
    browser.run(PRESS, "all")
    browser.until(SHOWS["rollouts"])
    tokens = "document.querySelectorAll('pre .token')"
    browser.until(f"{PRESS}; return {tokens}.length === 12", "log-prob")
    kinds = browser.run(f"return [...{tokens}].map((each) => each.className)")
    assert kinds[:6] == [f"token t{n}" for n in (0, 1, 2, 3, 4, 5)]


def test_headline_shows_learning_progress(browser, site):
    look(browser, site, "learning")
    text = browser.until("return document.querySelector('.headline')?.innerText")
    assert site.json("/api/v1/progress")["text"] in text
    assert browser.run("return document.querySelector('.headline').className") == "headline better"


def test_page_shows_an_invalid_author_key_verbatim(browser, tmp_path):
    folder = fill(tmp_path / "run")
    write_rounds(folder, [121], authors={"no key": 1})
    folder.groups.write_bytes(replace(made_group("sums", "external"), author="no key").line(1))
    with served(tmp_path / "run") as site:
        for view in ("learning", "lineage", "rollouts"):
            browser.open(site.told[-1], view)
            browser.until("return document.body.innerText.includes('no key')")
        assert browser.errors() == []


def test_each_family_has_a_chart_of_its_levels(browser, tmp_path):
    folder = fill(tmp_path / "run", rounds=500)
    levels = {f"{env}/{level}": 0.1 * level for env in ("sums", "words") for level in range(8)}
    write_rounds(folder, range(501, 511), levels=levels)
    with served(tmp_path / "run") as site:
        browser.open(site.told[-1], "learning")
        titles = "[...document.querySelectorAll('#families h3')].map((each) => each.innerText)"
        browser.until(f"return {titles}.length === 4")
        assert browser.run(f"return {titles}.slice(1)") == ["sorting together", "sums", "words"]
        browser.count("#family-1 .legend li", 8)
        names = browser.run("return document.querySelector('#family-1 .legend').innerText")
        assert "level 7" in names and "sums" not in names
        height = "document.querySelector('#family-1 {}').getBoundingClientRect().height"
        assert browser.run(f"return {height.format('.plot')} - {height.format('canvas')}") <= 1
        for screen in (browser.desktop, browser.phone):
            screen()
            assert browser.wrong("overflow") == []
        assert browser.errors() == []


def test_page_uses_one_name_for_a_peer_and_its_author_key(browser, site):
    look(browser, site, "swarm")
    browser.until("return document.querySelectorAll('table').length === 2")
    short = "document.querySelectorAll('table')[{}].querySelectorAll('.pattern + code')"
    names = f"return [...{short}].map((each) => each.innerText)"
    browser.until(f"return {short.format(1)}.length === 3")
    peers, authors = (browser.run(names.format(table)) for table in (0, 1))
    assert set(authors) < set(peers)


def test_phone_view_switches_between_list_and_group(browser, site):
    browser.phone()
    look(browser, site, "rollouts")
    shown = "return document.querySelector('{}').offsetParent !== null"
    assert browser.run(shown.format(".rows")) and not browser.run(shown.format(".group"))
    browser.click(".row")
    browser.until(shown.format(".group"))
    assert not browser.run(shown.format(".rows"))
    top = browser.run("return document.querySelector('.back').getBoundingClientRect().top")
    assert 0 <= top < 700
    browser.until("return document.activeElement.innerText.includes('back to the list')")
    browser.click(".back button")
    browser.until(shown.format(".rows"))
    browser.until("return document.activeElement.className === 'row'")


@pytest.mark.parametrize(
    ("origin", "correction", "said"),
    [
        ("own", "better", "worse completions less likely"),
        ("external", "better", "A peer’s worse completions are not used"),
        ("external", "none", "worse completions less likely"),
    ],
)
def test_group_shows_its_off_policy_correction(browser, tmp_path, origin, correction, said):
    folder = fill(tmp_path / "run")
    folder.groups.write_bytes(replace(made_group("sums", origin), reason=None).line(1))
    with served(tmp_path / "run", **{"mixture.correction": correction}) as site:
        browser.open(site.told[-1], "rollouts")
        assert said in browser.until("return document.querySelector('.reason')?.innerText")


def test_author_link_opens_its_groups(browser, site):
    look(browser, site, "lineage")
    browser.count(".update li", 4)
    browser.click(".update a[href$='${arguments[0]}']", AUTHORS[0])
    browser.count(".row", 2)
    assert site.json(f"/api/v1/groups?author={AUTHORS[0]}")["more"] is False


def test_update_link_opens_groups_of_its_round(browser, site):
    look(browser, site, "lineage")
    field = "document.querySelector('.filters input[type=number]')"
    browser.run(f"{field}.value = 1; {field}.dispatchEvent(new Event('change'))")
    browser.until("return document.querySelector('.update a[href$=\"round=1\"]') !== null")
    browser.run("document.querySelector('.update a[href$=\"round=1\"]').click()")
    browser.until(SHOWS["rollouts"])
    assert browser.run("return document.querySelector('input[type=number]').value") == "1"
    look(browser, site, "lineage")
    browser.until("return document.querySelector('.update li') !== null")
    assert browser.run("return document.querySelector('.update a[href*=round]')") is None


def test_ids_and_patterns_distinguish_peers_of_equal_name(browser, site):
    look(browser, site, "swarm")
    rows = "[...document.querySelector('table').querySelectorAll('tbody tr')]"
    ids = browser.run(f"return {rows}.map((row) => row.querySelector('.pattern + code').innerText)")
    names = browser.run(f"return {rows}.map((row) => row.querySelector('.told').innerText)")
    titles = browser.run(f"return {rows}.map((row) => row.querySelector('.told span').title)")
    assert names == ["sorting together"] * 4 and len(set(ids)) == 4
    assert all(title.startswith("claims: sorting together") for title in titles)
    before = "a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING"
    order = f"return {rows}.every((row) => {{ const a = row.querySelector('code');"
    assert browser.run(f"{order} const b = row.querySelector('.told'); return {before}; }})")


def test_empty_folder_page_shows_join_command(browser, tmp_path):
    with served(tmp_path / "empty") as site:
        for view in VIEWS:
            browser.open(site.told[-1], view)
            banner = "document.querySelector('.banner')?.innerText"
            browser.until(f"return {banner}.includes('swarm-node join')")
            if view != "health":
                browser.until("return document.querySelector('.empty')")
        assert browser.errors() == []


def test_stopped_node_page_shows_time_and_join_command(browser, site):
    look(browser, site, "learning")
    banner = browser.until("return document.querySelector('.banner')?.innerText")
    assert "/09/2026" in banner and "swarm-node join" in banner


def test_chart_covers_all_10000_rounds(browser, tmp_path):
    fill(tmp_path / "run", rounds=10_000)
    with served(tmp_path / "run") as site:
        look(browser, site, "learning")
        label = "return document.querySelector('#reward .plot').ariaLabel"
        summary = until(lambda: browser.run(label), browser.text)
        assert "at round 10,000" in summary
        assert len(site.json("/api/v1/rounds?points=1000")["columns"]["round"]) <= 1000
        assert browser.errors() == []
