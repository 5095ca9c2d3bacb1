"""A headless Chromium, and servers of folders: a plain one, and one with the policy that Jenkins sends.

`from tests.browser import browser, serve  # noqa: F401` in a test file marked `browser`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

# As Jenkins serves what a build archived; no script runs, and no style but that of files.
JENKINS = "sandbox allow-same-origin; default-src 'none'; img-src 'self'; style-src 'self'"


class Browser:
    """Chromium with what the tests of pages ask for; `driver` is selenium's."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Shows a page at that size and in that colour scheme; what was logged before is dropped."""
        self.show_at(width, height, scheme)
        self.driver.get("about:blank")  # so that another fragment alone is a new page, too
        self.driver.get_log("browser")
        self.driver.get(address)

    def show_at(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Shows the open page at that size and in that colour scheme, without loading it again."""
        narrow = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": narrow}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.scheme(scheme)

    def scheme(self, name: str) -> None:
        """light or dark, as the reader's system says."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self) -> list[str]:
        """Warnings and errors of the console since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def ask(self, expression: str) -> object:
        """The value of an expression; the debugger may ask also where the page itself may run no script."""
        answer = self.driver.execute_cdp_cmd(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True}
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 300) -> object:
        """The value of an expression as soon as it is true."""
        code = f"""new Promise((resolve, reject) => {{
            const end = Date.now() + {seconds * 1000};
            const look = () => {{
                const found = {expression};
                if (found) resolve(found instanceof Node ? true : found);
                else if (Date.now() > end) reject(new Error("never came true: " + {expression!r}));
                else setTimeout(look, 30);
            }};
            look();
        }})"""
        return self.ask(code)

    def shot(self, path: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        import base64

        options = {"format": "png", "captureBeyondViewport": whole}
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(picture["data"]))

    def barriers(self) -> list[str]:
        """What axe finds on the page that keeps people from using it: rule, impact and the first place."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        script = cache / "perfdash" / "axe" / "axe.min.js"
        assert script.exists(), "no axe: ci/browser.sh installs it"
        if not self.ask("'axe' in window"):
            self.driver.execute_script(script.read_text())
        found = self.ask("axe.run(document).then((all) => JSON.stringify(all.violations))")
        return [
            f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}"
            for one in json.loads(str(found))
        ]

    def sideways(self) -> int:
        """By how many pixels the page as a whole is wider than the window."""
        elements = self.ask(
            "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
            " - document.documentElement.clientWidth"
        )
        assert isinstance(elements, int)
        return max(0, elements)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own, without network beyond this machine."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    driver_program = shutil.which("chromedriver")
    assert program, "no Chromium: ci/browser.sh installs it"
    assert driver_program, "no chromedriver: ci/browser.sh installs it"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars",
        "--force-color-profile=srgb",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=driver_program))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser_process:
        yield browser_process


class _Handler(SimpleHTTPRequestHandler):
    policy: str | None = None

    def end_headers(self) -> None:
        if self.policy:
            self.send_header("Content-Security-Policy", self.policy)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Jenkins(_Handler):
    policy = JENKINS


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """serve(folder, jenkins=False): the address of a loopback server of that folder, without a last /."""
    servers = []

    def start(folder: Path, jenkins: bool = False) -> str:
        handler = functools.partial(_Jenkins if jenkins else _Handler, directory=str(folder))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
