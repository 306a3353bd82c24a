"""The pages about jobs in a real browser: at a phone's width and a desk's, without an error."""

from __future__ import annotations

import pytest
from redis import Redis

from forkq.api import cron
from tests.web.browser import PHONE, WIDE, Browser
from tests.web.scenario import shop
from tests.web.test_browser import AXE

pytestmark = pytest.mark.xdist_group("browser")

PAGES = (
    "/retries", "/scheduled", "/dead", "/failures", "/job?jid=dead-1", "/cron",
    "/cron/job?name=nightly", "/limits", "/job-metrics", "/job-metrics?job=Thumbnail",
)  # fmt: skip


def test_each_job_page_fits_and_axe_finds_nothing_serious(browser: Browser, redis: Redis) -> None:
    if not AXE.exists():
        pytest.skip("needs axe-core from npm: make test-deps")
    shop(redis)
    cron.add("nightly", "0 3 * * *", "Report")
    axe = AXE.read_text()
    for path in PAGES:
        browser.look(PHONE, "dark")
        browser.open(path)
        browser.find("h1")
        assert not browser.scrolls_sideways(), path
        assert _serious(browser, axe) == [], path
        browser.look(WIDE, "light")
        assert not browser.scrolls_sideways(), path
        assert _serious(browser, "") == [], path
        assert browser.console_errors() == [], path


def _serious(browser: Browser, axe: str) -> list[tuple[str, str]]:
    found = browser.run(f"{axe}; return axe.run().then((all) => all.violations)")
    serious = [one for one in found if one["impact"] in {"serious", "critical"}]
    return [(one["id"], one["nodes"][0]["html"]) for one in serious]
