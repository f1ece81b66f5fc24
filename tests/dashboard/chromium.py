"""Drive the installed Chromium and record every host that it contacts."""

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LOOKED_AT = Path(__file__).with_name("looked_at.js").read_text(encoding="utf-8")
PATIENCE = 300.0
WIDTH, HEIGHT = 1360, 950
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
VIEWS = ("learning", "rollouts", "lineage", "swarm", "health", "ask")
THEMES = ("light", "dark")
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", f"--window-size={WIDTH},{HEIGHT}"),
    # Chromium otherwise throttles a page that changes 200 views in ten seconds.
    "--disable-ipc-flooding-protection",
)
HELD = """
window.held = 0;
window.hold = () => { window.until = new Promise((resolve) => { window.letGo = resolve; }); };
window.pass = () => { window.until = null; };
window.hold();
const now = window.fetch.bind(window);
window.fetch = async (...asked) => {
  window.held += 1;
  const until = window.until;
  const answer = await now(...asked);
  const body = await answer.text();
  await until;
  setTimeout(() => { window.held -= 1; }, 100);
  return new Response(body, { status: answer.status, headers: answer.headers });
};
"""
"""Answers to requests after ``hold()`` wait for ``letGo()``; ``pass()`` ends this."""
GONE = (
    *("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING"),
    *("net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE", "net::ERR_ABORTED"),
)
"""Console errors about a stopped server, which a page cannot suppress."""
READABLE = ("overflow", "faint", "nameless")


def missing() -> str:
    """Return which required programs are missing, or an empty string."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    need = f"needs {' and '.join(lacking)}: apt-get install chromium chromium-driver"
    return need if lacking else ""


class Browser:
    """A browser window that records its console and every request."""

    def __init__(self, profile: Path) -> None:
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for argument in (*QUIET, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(str(shutil.which("chromedriver")))
        self.driver = Chrome(options=options, service=service)
        self.driver.set_script_timeout(PATIENCE)
        self._said, self._asked = list[str](), list[str]()

    def open(self, url: str, view: str = "learning") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{url}#/{view}")
        self.until("return document.querySelector('main h2') !== null")

    def hold(self) -> None:
        """Delay the answers to pages that are opened from now on; see :data:`HELD`."""
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HELD})

    def let_go(self) -> None:
        """Deliver the delayed answers to the page."""
        self.run("window.letGo()")
        self.until("return window.held === 0")

    def turn(self, view: str) -> None:
        self.run("document.querySelector(`nav a[href='#/${arguments[0]}']`).click()", view)
        at = "document.querySelector('nav a[aria-current]').hash"
        self.until(f"return {at} === arguments[0]", f"#/{view}")

    def click(self, selector: str, *arguments: Any) -> None:
        """Click the element of a selector in which ``${arguments[0]}`` is replaced."""
        self.run(f"document.querySelector(`{selector}`).click()", *arguments)

    def count(self, selector: str, wanted: int) -> None:
        """Wait until the selector matches the wanted number of elements."""
        found = f"document.querySelectorAll('{selector}').length"
        self.until(f"return {found} === arguments[0]", wanted)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> Any:
        return until(lambda: self.run(script, *arguments), lambda: f"{script}: {self.text()[:999]}")

    def wrong(self, what: str) -> list[str]:
        """Return the faults that a function of ``looked_at.js`` finds."""
        found: list[str] = self.run(f"{LOOKED_AT}\nreturn {what}()")
        return found

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def theme(self, name: str) -> None:
        self.run("window.page.applyTheme(arguments[0])", name)

    def phone(self) -> None:
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)

    def desktop(self) -> None:
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def picture(self, path: Path) -> None:
        told = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(told["data"]))

    def errors(self, gone: bool = False) -> list[str]:
        """Return console errors and warnings so far, without those of a ``gone`` server."""
        entries = self.driver.get_log("browser")
        self._said += [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]
        return [said for said in self._said if not (gone and any(k in said for k in GONE))]

    def assert_quiet(self, port: int) -> None:
        """Assert that the console has no errors and that only one server was contacted."""
        assert self.errors() == []
        assert self.hosts() == {f"127.0.0.1:{port}"}

    def assert_harmless(self, port: int, own: int = 0) -> None:
        """Assert that no injected content took effect; ``own`` elements are the page's."""
        assert self.run("return window.executed ?? null") is None
        assert len(self.wrong("foreign")) == own
        assert self.wrong("overflow") == []
        self.assert_quiet(port)

    def assert_readable_everywhere(self, picture: Callable[[str], Path], where: str) -> None:
        """Assert that nothing overflows, is faint or lacks a name on any screen."""
        for screen, width in (("desktop", WIDTH), ("phone", PHONE["width"])):
            getattr(self, screen)()
            self.until("return innerWidth === arguments[0]", width)
            self.picture(picture(screen))
            for fault in READABLE:
                assert self.wrong(fault) == [], (where, screen)
        self.desktop()

    def hosts(self) -> set[str]:
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._asked.append(message["params"]["request"]["url"])
        parts = [urlsplit(url) for url in self._asked]
        return {each.netloc for each in parts if each.scheme in ("http", "https", "ws", "wss")}

    def close(self) -> None:
        self.driver.quit()


def until(condition: Callable[[], Any], told: Callable[[], str]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"timed out after {PATIENCE:.0f} s: {told()}"
        time.sleep(0.1)
    return found
