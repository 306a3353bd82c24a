"""Debian's Chromium without a screen, as the tests use it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import wait_until

PROGRAMS = {"chromium": "chromium", "chromedriver": "chromium-driver"}  # and their packages
WIDE = 1280, 900
PHONE = 360, 740
OFTEN = 0.1  # seconds; each look costs the browser something


class Browser:
    """One Chromium. Paths are those of the web UI at ``url``."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def reset(self) -> None:
        """As new: no cookies, a wide window, light."""
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.look()
        self.console_errors()

    def leave(self) -> None:
        """Ends the page and its live connection."""
        self.driver.get("about:blank")

    def look(self, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        """The size of the window, and what the system wishes: "light" or "dark"."""
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        wish = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})

    def open(self, path: str) -> None:
        """Goes to a page, and waits until it is loaded."""
        self.driver.get(self.url + path)

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self.driver.current_url).removeprefix(self.url)

    def find(self, selector: str) -> WebElement:
        """The first element of a CSS selector; waits for it."""
        what = f"{selector} at {self.path}"
        return wait_until(lambda: self.all(selector), what=what, every=OFTEN)[0]

    def all(self, selector: str) -> list[WebElement]:
        """All elements of a CSS selector, as of now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """The text of an element that may just be replaced, in one step."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.run(script, selector))

    def wait_text(self, text: str, selector: str = "body") -> None:
        """Waits until an element has that text."""
        what = f"{text!r} in {self.path}"
        wait_until(lambda: text in self.text(selector), what=what, every=OFTEN)

    def wait_path(self, path: str) -> None:
        """Waits until it is there, and the page with its script is loaded."""
        loaded = "return document.readyState === 'complete'"
        wait_until(lambda: self.path == path and self.run(loaded), what=path, every=OFTEN)

    def wait_focus(self, selector: str) -> None:
        """Waits until a key reaches the first element of a CSS selector: a text may stand on the
        screen before the page has given the focus to its button."""
        has_it = "return document.activeElement === document.querySelector(arguments[0])"
        what = f"the focus on {selector} at {self.path}"
        self.find(selector)
        wait_until(lambda: self.run(has_it, selector), what=what, every=OFTEN)

    def press(self, *keys: str) -> None:
        """Presses keys, wherever the focus is."""
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body of JavaScript returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def scrolls_sideways(self) -> bool:
        """Whether the page is wider than the window."""
        return bool(
            self.run("const e = document.documentElement; return e.scrollWidth > e.clientWidth")
        )

    def screenshot(self, path: Path) -> None:
        """Writes what stands in the window to a PNG."""
        self.driver.save_screenshot(str(path))

    def console_errors(self) -> list[str]:
        """The errors in the console since the last call."""
        lines = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in lines if line["level"] == "SEVERE"]


@contextmanager
def start_browser(url: str) -> Iterator[Browser]:
    """Skips the test if the browser is missing."""
    found = {name: shutil.which(name) for name in PROGRAMS}
    missing = [PROGRAMS[name] for name, path in found.items() if path is None]
    if missing:
        pytest.skip(f"needs Debian's {' and '.join(missing)}: make test-deps")
    options = webdriver.ChromeOptions()
    options.binary_location = str(found["chromium"])
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(str(found["chromedriver"]))
    with webdriver.Chrome(options, service, keep_alive=False) as driver:
        yield Browser(driver, url)
