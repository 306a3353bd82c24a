"""Each page fits a desk and a phone, light and dark, with data and without: axe-core finds nothing
serious, no page scrolls sideways, and no script fails."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis import Redis

import forkq
from tests.support.waiting import wait_until
from tests.web.browser import PHONE, WIDE, Browser
from tests.web.flow_data import add_flow
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
    "/job-metrics?job=Thumbnail", "/cron", "/cron/job?name=nightly", "/limits", "/locks", "/search",
    "/batches", "/batch?bid=shopbatch", "/flows", "/flow?bid=shopflow",
    "/search?q=Mail", "/nothing",
)  # fmt: skip
# The rules of axe about what another scheme or size can change: the elements stay the same.
LOOKS = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")
ALL = ()

# What axe found, once for each rule; it calls its last argument.
CHECK = """
const done = arguments[arguments.length - 1];
const rules = arguments[0].length ? { runOnly: arguments[0] } : {};
const grave = (rule) => ["serious", "critical"].includes(rule.impact);
const told = (rule) => `${rule.impact} ${rule.id}: ${rule.nodes[0].html.slice(0, 150)}`;
axe.run({ resultTypes: ["violations"], ...rules })
  .then((found) => done(found.violations.filter(grave).map(told)))
  .catch((error) => done([String(error)]));
"""
# Leaves two of elements that differ in texts and numbers only and stand side by side, such as the
# rows of a table: axe would say the same of each, which takes it most of its time.
TWO_OF_A_KIND = """
disconnect();
const kind = (element) => [
  element.tagName, element.getAttribute("class"), ...element.getAttributeNames().sort(),
  "(", ...[...element.children].map(kind), ")",
].join(" ");
for (const element of document.querySelectorAll("main *")) {
  const [one, other] = [element.previousElementSibling,
                        element.previousElementSibling?.previousElementSibling];
  if (other && kind(element) === kind(one) && kind(one) === kind(other)) element.remove();
}
"""


def too_wide(browser: Browser, where: str) -> list[str]:
    """Whether the whole page is wider than the window."""
    browser.find("main")
    return [f"{where}: scrolls sideways"] * browser.scrolls_sideways()


def findings(
    browser: Browser, where: str, rules: tuple[str, ...] = ALL, *, load: bool = True
) -> list[str]:
    """What is serious or critical on the page that is open by these rules, or by all; and whether
    it is too wide. ``load`` is False if axe was loaded into this page before."""
    browser.find("main")
    still = "return document.getAnimations().length === 0"  # a colour that fades in is pale
    wait_until(lambda: browser.run(still), what=f"the end of the animations of {where}")
    if load:  # not as a script of the page: its policy allows none but ours
        browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
    found = list(browser.driver.execute_async_script(CHECK, rules))
    return [*too_wide(browser, where), *(f"{where}: {told}" for told in found)]


@pytest.mark.parametrize("dark", [LOOKS, pytest.param(ALL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("full", [True, False], ids=["data", "empty"])
def test_each_page_fits_and_axe_finds_nothing_grave(
    browser: Browser, redis: Redis, full: bool, dark: tuple[str, ...]
) -> None:
    """In the light on a desk, and in the dark on a phone, where colours are what differs most."""
    if full:
        shop(redis)
        add_flow(redis, "shopflow")
        redis.sadd("queues", LONG)
        forkq.api.Queue(LONG).pause()
        forkq.api.cron.add("nightly", "0 3 * * *", "Report")
    found = []
    browser.look(PHONE, "dark")
    for path in PAGES:
        browser.open(path)
        found += too_wide(browser, f"{path} on a phone")
        browser.look(WIDE, "light")
        found += too_wide(browser, path)
        browser.run(TWO_OF_A_KIND)
        found += findings(browser, path)
        browser.look(PHONE, "dark")
        found += findings(browser, f"{path} in the dark", dark, load=False)
        errors = browser.console_errors()
        if full and path != "/nothing":  # where it is not there, the browser says so
            found += errors
    assert not found, "\n".join(found)


def test_axe_finds_nothing_grave_in_what_stands_in_front(browser: Browser, redis: Redis) -> None:
    """The question before an action, what it has done, and the list of keys."""
    shop(redis)
    for scheme, rules in (("light", ALL), ("dark", LOOKS)):
        browser.look(WIDE, scheme)
        browser.open("/queue?name=reports")
        browser.find("form[action$='/queue/clear'] button").click()
        browser.wait_text("Delete", ".confirm h1")
        found = findings(browser, "question", rules)
        browser.open("/queue?name=reports")
        browser.find("main .head .actions button").click()
        browser.find(".flash")
        found += findings(browser, "flash", rules)
        browser.open("/retries")
        browser.press("j", "x", "c")
        browser.wait_text("Cancel 1 job", ".confirm h1")
        found += findings(browser, "question of a cancel", rules)
        browser.find(".confirm button").click()
        browser.wait_text("Cancelled", ".flash")
        browser.find("tbody a").click()
        browser.wait_text("being cancelled", "h1")
        found += findings(browser, "a job that is being cancelled", rules)
        browser.press("?")
        browser.find("dialog[open]")
        found += findings(browser, "keys", rules)
        assert not found, "\n".join(found)
