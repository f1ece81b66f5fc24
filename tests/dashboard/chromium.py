"""The installed Chromium, driven over its own driver and kept from every other host."""

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
    # Two hundred views in ten seconds are more than it takes from a page of strangers.
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
"""Keeps back what was asked for after ``hold()`` until ``letGo()``, but not after ``pass()``."""
GONE = (
    *("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING"),
    *("net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE", "net::ERR_ABORTED"),
)
"""What the console says of a server that has ended, and no page can keep it from saying."""
READABLE = ("overflow", "faint", "nameless")


def missing() -> str:
    """What these tests need and this machine lacks; empty where it has everything."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    need = f"needs {' and '.join(lacking)}: apt-get install chromium chromium-driver"
    return need if lacking else ""


class Browser:
    """One window. Its console and every request it makes are kept."""

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
        """Keep back what every page opened from now on is answered; see :data:`HELD`."""
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HELD})

    def let_go(self) -> None:
        """Tell the page what it was answered when it asked."""
        self.run("window.letGo()")
        self.until("return window.held === 0")

    def turn(self, view: str) -> None:
        self.run("document.querySelector(`nav a[href='#/${arguments[0]}']`).click()", view)
        at = "document.querySelector('nav a[aria-current]').hash"
        self.until(f"return {at} === arguments[0]", f"#/{view}")

    def click(self, selector: str, *arguments: Any) -> None:
        """Press what a selector finds, in which ``${arguments[0]}`` is filled in."""
        self.run(f"document.querySelector(`{selector}`).click()", *arguments)

    def count(self, selector: str, wanted: int) -> None:
        """Wait until so many elements are found."""
        found = f"document.querySelectorAll('{selector}').length"
        self.until(f"return {found} === arguments[0]", wanted)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> Any:
        return until(lambda: self.run(script, *arguments), lambda: f"{script}: {self.text()[:999]}")

    def wrong(self, what: str) -> list[str]:
        """What a function of ``looked_at.js`` finds wrong: overflow, faint, nameless or foreign."""
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
        """Errors and warnings of the console so far, but for those of a server that is ``gone``."""
        entries = self.driver.get_log("browser")
        self._said += [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]
        return [said for said in self._said if not (gone and any(k in said for k in GONE))]

    def assert_quiet(self, port: int) -> None:
        """Nothing was complained about, and nobody but one server was asked for anything."""
        assert self.errors() == []
        assert self.hosts() == {f"127.0.0.1:{port}"}

    def assert_harmless(self, port: int, own: int = 0) -> None:
        """Nothing ran, was made but the page's ``own``, or was asked for; all is in its place."""
        assert self.run("return window.executed ?? null") is None
        assert len(self.wrong("foreign")) == own
        assert self.wrong("overflow") == []
        self.assert_quiet(port)

    def assert_readable_everywhere(self, picture: Callable[[str], Path], where: str) -> None:
        """On a desktop and on a phone nothing overflows, is faint or has no name."""
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
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {told()}"
        time.sleep(0.1)
    return found
