"""The layout of the pages at scale, measured in a real browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis import Redis

from tests.web.browser import Browser
from tests.web.flow_data import add_wide_flow
from tests.web.scale import CLASS, LONG, MANY, at_scale

pytestmark = pytest.mark.xdist_group("browser")

FAULTS = Path(__file__).with_name("layout.js").read_text()
WINDOWS = ((1440, "light"), (1024, "dark"), (768, "light"), (360, "dark"))
PAGES = (
    "/",
    "/queues",
    "/queue?name=mail",
    f"/queue?{urlencode({'name': LONG})}",
    "/busy",
    "/failures",
    "/retries",
    "/dead",
    "/job?jid=job-5",
    "/job-metrics",
    f"/job-metrics?{urlencode({'job': CLASS})}",
    "/limits",
    "/locks",
    "/batches",
    "/batch?bid=scalebatch",
    "/flows",
    "/flow?bid=scaleflow",
)


def faults(browser: Browser, path: str) -> list[str]:
    """What is broken on a page, in windows of each width."""
    browser.open(path)
    browser.find("h1")
    browser.run("disconnect()")  # what is measured stands still
    found = list[str]()
    for width, scheme in WINDOWS:
        browser.look((width, 900), scheme)
        found += [f"{path} at {width}, {scheme}: {fault}" for fault in browser.run(FAULTS)]
    return found


@pytest.mark.parametrize("many", [20, pytest.param(MANY, marks=pytest.mark.slow)])
def test_nothing_breaks_at_scale(browser: Browser, redis: Redis, many: int) -> None:
    """A million jobs, ``many`` queues and processes, long names and numbers of twelve digits."""
    at_scale(redis, many)
    add_wide_flow(redis, "scaleflow", LONG)
    browser.open("/queues")
    browser.wait_text("1,000,120", "tbody")  # the facts may be those of the test before
    found = [fault for path in PAGES for fault in faults(browser, path)]
    assert not found, "\n".join(found)
