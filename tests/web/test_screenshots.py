"""The pictures of the docs: ``make screenshots`` writes them to docs/images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from redis import Redis

from tests.web.browser import PHONE, Browser
from tests.web.scenario import shop

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

PAGES = {
    "dashboard": "/",
    "queues": "/queues",
    "queue": "/queue?name=mail",
    "busy": "/busy",
}


def test_pictures(browser: Browser, redis: Redis, tmp_path: Path) -> None:
    folder = Path(os.environ.get("FORKQ_TEST_SCREENSHOTS", tmp_path))
    shop(redis)
    for name, path in PAGES.items():
        for scheme in ("light", "dark"):
            browser.look((1280, 860), scheme)
            _picture(browser, path, folder / f"web-{name}{'-dark' * (scheme == 'dark')}.png")
    browser.look(PHONE, "light")
    _picture(browser, "/", folder / "web-dashboard-phone.png")


def _picture(browser: Browser, path: str, file: Path) -> None:
    browser.open(path)
    browser.find("h1")
    browser.screenshot(file)
    assert file.stat().st_size > 10_000
