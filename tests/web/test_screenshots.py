"""The pictures of the docs: ``make screenshots`` writes them to docs/images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from redis import Redis

from tests.web.browser import PHONE, Browser
from tests.web.flow_data import add_flow
from tests.web.scenario import shop

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

# Nine in all: the repository keeps them.
PAGES = {
    "dashboard": "/",
    "queue": "/queue?name=mail",
    "busy": "/busy",
    "failures": "/failures",
    "flow": "/flow?bid=shopflow",
    "job": "/job?jid=dead-2",
    "metrics": "/job-metrics?job=Thumbnail",
}


def test_pictures(browser: Browser, redis: Redis, tmp_path: Path) -> None:
    folder = Path(os.environ.get("FORKQ_TEST_SCREENSHOTS", tmp_path))
    shop(redis)
    add_flow(redis, "shopflow")
    for name, path in PAGES.items():
        browser.look((1280, 860), "light")
        _picture(browser, path, folder / f"web-{name}.png")
    browser.look((1280, 860), "dark")
    _picture(browser, "/", folder / "web-dashboard-dark.png")
    browser.look(PHONE, "light")
    _picture(browser, "/", folder / "web-dashboard-phone.png")


def _picture(browser: Browser, path: str, file: Path) -> None:
    browser.open(path)
    browser.find("h1")
    browser.screenshot(file)
    assert 10_000 < file.stat().st_size < 150_000
