"""All pages with data in a real browser: at a phone's width and a desk's, without an error."""

from __future__ import annotations

import pytest
from redis import Redis

from forkq.api import cron
from tests.support.documents import ROOT
from tests.web.browser import PHONE, WIDE, Browser
from tests.web.scenario import shop

pytestmark = pytest.mark.xdist_group("browser")

AXE = ROOT / "build" / "axe.min.js"
PAGES = (
    "/", "/queues", "/queue?name=mail", "/busy", "/search?q=Mail",
    "/retries", "/scheduled", "/dead", "/failures", "/job?jid=dead-1", "/cron",
    "/cron/job?name=nightly", "/limits", "/job-metrics", "/job-metrics?job=Thumbnail",
)  # fmt: skip
# Only what is wrong: to list all nodes that are right takes as long as to check them.
RUN = """const all = {resultTypes: ['violations']};
const only = arguments[0].length ? {runOnly: arguments[0]} : {};
return axe.run({...all, ...only}).then((found) => found.violations)"""
COLOURS = ("color-contrast", "link-in-text-block")
ALL = ()


@pytest.mark.parametrize("in_the_dark", [COLOURS, pytest.param(ALL, marks=pytest.mark.slow)])
def test_each_page_fits_and_axe_finds_nothing_serious(
    browser: Browser, redis: Redis, in_the_dark: tuple[str, ...]
) -> None:
    """In the light on a desk, and in the dark on a phone, where colours are what differs most."""
    if not AXE.exists():
        pytest.skip("needs axe-core from npm: make test-deps")
    shop(redis)
    cron.add("nightly", "0 3 * * *", "Report")
    browser.open("/")
    browser.wait_text("no process serves", "#problems")  # the facts may be those before
    axe = AXE.read_text()
    for path in PAGES:
        browser.look(WIDE, "light")
        browser.open(path)
        browser.find("h1")
        browser.run(axe)
        assert _wrong(browser) == [], path
        browser.look(PHONE, "dark")
        assert _wrong(browser, in_the_dark) == [], path
        assert browser.console_errors() == [], path


def _wrong(browser: Browser, rules: tuple[str, ...] = ALL) -> list[tuple[str, str]]:
    """What axe calls serious by these rules, or by all."""
    found = browser.run(RUN, rules)
    serious = [one for one in found if one["impact"] in {"serious", "critical"}]
    wrong = [(one["id"], one["nodes"][0]["html"]) for one in serious]
    return wrong + [("scrolls sideways", browser.path)] * browser.scrolls_sideways()
