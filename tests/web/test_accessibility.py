"""axe-core finds nothing serious on any page, light or dark, with data or without."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis import Redis

import forkq
from tests.support.waiting import wait_until
from tests.web.browser import PHONE, WIDE, Browser
from tests.web.scenario import shop

AXE = Path(__file__).parents[2] / "build" / "axe.min.js"
pytestmark = [
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: make test-deps"),
]

LONG = "a_queue_whose_name_says_all_that_it_is_for_" * 4
PAGES = (
    "/", "/queues", "/queue?name=mail", f"/queue?{urlencode({'name': LONG})}", "/busy", "/failures",
    "/retries", "/retries?job=Nope", "/scheduled", "/dead", "/job?jid=dead-2", "/job-metrics",
    "/job-metrics?job=Thumbnail", "/cron", "/limits", "/search", "/search?q=Mail", "/nothing",
)  # fmt: skip

# What axe found, once for each rule; it calls its last argument.
CHECK = """
const done = arguments[arguments.length - 1];
const grave = (rule) => ["serious", "critical"].includes(rule.impact);
const told = (rule) => `${rule.impact} ${rule.id}: ${rule.nodes[0].html.slice(0, 150)}`;
axe.run({ resultTypes: ["violations"] })
  .then((found) => done(found.violations.filter(grave).map(told)))
  .catch((error) => done([String(error)]));
"""


def findings(browser: Browser, where: str) -> list[str]:
    """The serious and critical ones on the page that is open."""
    browser.find("main")
    still = "return document.getAnimations().length === 0"  # a colour that fades in is pale
    wait_until(lambda: browser.run(still), what=f"the end of the animations of {where}")
    # Not as a script of the page: its policy allows none but ours.
    browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
    return [f"{where}: {told}" for told in browser.driver.execute_async_script(CHECK)]


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
@pytest.mark.parametrize("full", [True, False], ids=["data", "empty"])
def test_axe_finds_nothing_grave(
    browser: Browser, redis: Redis, full: bool, size: tuple[int, int], scheme: str
) -> None:
    if full:
        shop(redis)
        redis.sadd("queues", LONG)
        forkq.api.Queue(LONG).pause()
    browser.look(size, scheme)
    found = []
    for path in PAGES:
        browser.open(path)
        found += findings(browser, path)
    browser.console_errors()  # of the page that is not there
    assert not found, "\n".join(found)


def test_axe_finds_nothing_grave_in_what_stands_in_front(browser: Browser, redis: Redis) -> None:
    """The question before an action, what it has done, and the list of keys."""
    shop(redis)
    for scheme in ("light", "dark"):
        browser.look(WIDE, scheme)
        browser.open("/queue?name=reports")
        browser.find("form[action$='/queue/clear'] button").click()
        browser.wait_text("Delete", ".confirm h1")
        found = findings(browser, "question")
        browser.open("/queue?name=reports")
        browser.find("main .head .actions button").click()
        browser.find(".flash")
        found += findings(browser, "flash")
        browser.press("?")
        browser.find("dialog[open]")
        found += findings(browser, "keys")
        assert not found, "\n".join(found)
