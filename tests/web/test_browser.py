"""The web UI in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

import forkq
from forkq.wire.payload import dumps
from tests.support.waiting import wait_until
from tests.web.browser import PHONE, Browser
from tests.web.scenario import shop
from tests.web.shared import HOSTILE

pytestmark = pytest.mark.xdist_group("browser")

PAGES = ("/", "/queues", "/queue?name=mail", "/busy", "/search?q=Mail")


def push(queue: str = "mail", job: str = "Mail", *args: Any) -> None:
    forkq.default_client.default().push({"class": job, "args": list(args), "queue": queue})


def test_long_names_fit_a_phone(browser: Browser) -> None:
    push("mail", "Mail", "a" * 500)
    push("a" * 150, "b" * 300)
    browser.look(PHONE)
    browser.open("/queues")
    browser.wait_text("a" * 150, "tbody")  # the facts may be those of the test before
    for path in PAGES:
        browser.open(path)
        browser.find("h1")
        assert not browser.scrolls_sideways(), path


def test_bars_have_the_colours_of_the_sheet(browser: Browser, redis: Redis) -> None:
    shop(redis)
    colours = (
        "const colour = (of) => getComputedStyle(document.querySelector('.chart-bars ' + of)).fill;"
        "return [colour('.good'), colour('.failed')]"
    )
    browser.open("/")
    browser.find(".chart-bars .failed")
    good, failed = browser.run(colours)
    assert "rgb(0, 0, 0)" not in {good, failed}
    assert good != failed


def test_the_pages_stand_in_one_line_at_1200(browser: Browser) -> None:
    browser.look((1200, 800))
    browser.open("/")
    tops = "return [...document.querySelectorAll('header nav a')].map((a) => a.offsetTop)"
    assert len(set(browser.run(tops))) == 1


def test_an_action_acts_in_redis(browser: Browser) -> None:
    push()
    browser.open("/queue?name=mail")
    browser.find("form[action$='/queue/pause'] button").click()
    browser.wait_text("Paused mail", ".flash")
    assert forkq.api.Queue("mail").paused
    browser.find(".flash button").click()  # its undo
    browser.wait_text("Resumed mail", ".flash")
    assert not forkq.api.Queue("mail").paused


def test_a_clear_asks_first_and_can_be_undone(browser: Browser) -> None:
    for _ in range(3):
        push()
    browser.open("/queue?name=mail")
    browser.find("form[action$='/queue/clear'] button").click()
    browser.wait_text("Delete 3 jobs from mail?", "h1")
    assert forkq.api.Queue("mail").size == 3
    browser.find(".confirm button").click()
    browser.wait_text("Deleted 3 jobs", ".flash")
    assert forkq.api.Queue("mail").size == 0
    browser.find(".flash button").click()
    browser.wait_text("Put 3 jobs back", ".flash")
    assert forkq.api.Queue("mail").size == 3


def test_what_changes_is_shown_without_a_reload(browser: Browser) -> None:
    push()
    browser.open("/queues")
    browser.run("window.same = true")
    browser.wait_text("1", "td.number")
    push()
    browser.wait_text("2", "td.number")
    assert browser.run("return window.same")


def test_problems_are_read_aloud_when_their_list_changes_only(
    browser: Browser, redis: Redis
) -> None:
    """Their figures change each second."""
    push("lost")
    browser.open("/queues")
    browser.wait_text("no process runs jobs: 1 job waiting", "#problems")
    browser.run(
        "window.said = [];"
        "const regions = document.querySelectorAll('[aria-live], [role=status], [role=alert]');"
        "for (const one of regions) new MutationObserver(() => said.push(one.textContent))"
        ".observe(one, {childList: true, characterData: true, subtree: true});"
    )
    push("lost")
    browser.wait_text("no process runs jobs: 2 jobs waiting", "#problems")
    assert browser.run("return said") == []
    redis.hset("forkq:classes:held", "shop.Boom", "1700000000 12")
    wait_until(lambda: browser.run("return said"), what="the new problem to be said")
    [said] = browser.run("return said")
    assert said.startswith("no process runs jobs: 2 jobs waiting")
    assert "class shop.Boom has killed" in said


def test_the_focus_stays_where_it_is(browser: Browser) -> None:
    push()
    browser.open("/queues")
    browser.wait_text("mail", "tbody th")  # the facts may be those of the test before
    browser.wait_text("Pause", "td .actions")
    browser.run("document.querySelector('td button').focus()")
    push()
    browser.wait_text("2", "td.number")
    assert browser.run("return document.activeElement.innerText") == "Pause"


def test_a_hidden_page_asks_for_nothing(browser: Browser) -> None:
    push()
    browser.open("/queues")
    browser.wait_text("1", "td.number")
    wait_until(lambda: browser.run("return source !== null"), what="the connection")
    browser.run(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    assert browser.run("return source") is None
    browser.run(
        "Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    push()
    browser.wait_text("2", "td.number")


def test_a_page_says_that_its_connection_is_lost(browser: Browser) -> None:
    push()
    browser.open("/queues")
    browser.wait_text("1", "td.number")
    said = browser.run("source.onerror(); return document.getElementById('lost').textContent")
    assert "no longer change" in said  # in one step: the next message takes it away
    push()
    browser.wait_text("2", "td.number")
    wait_until(lambda: browser.text("#lost") == "", what="the end of the warning")


def test_hostile_names_are_text(browser: Browser, redis: Redis) -> None:
    """Another program has pushed it: forkq refuses such a name of a queue."""
    redis.sadd("queues", HOSTILE)
    job = {"class": HOSTILE, "args": [HOSTILE], "queue": HOSTILE, "jid": "0" * 24}
    redis.lpush(f"queue:{HOSTILE}", dumps(job))
    for path in ("/queues", "/busy", "/"):
        browser.open(path)
        browser.find("h1")
        assert browser.driver.title.endswith("forkq")
    browser.open("/queues")
    browser.wait_text("<script>document", "tbody th")
    browser.find("tbody th a").click()
    browser.wait_text("<script>document", "h1")
    browser.wait_text("<script>document", "code.args")
    assert "hacked" not in browser.driver.title.partition("<script>")[0]


def test_the_keyboard_is_enough(browser: Browser) -> None:
    push()
    browser.open("/")
    browser.press("g", "q")
    browser.wait_path("/queues")
    browser.wait_text("mail", "tbody th")  # the facts may be those of the test before
    browser.press("j", "ENTER")
    browser.wait_path("/queue?name=mail")
    browser.press("g", "b")
    browser.wait_path("/busy")
    browser.press("?")
    browser.wait_text("Keyboard", "dialog[open]")
    browser.press("ESCAPE", "/")
    browser.wait_focus("#search")
    browser.press(*"Mail", "ENTER")
    browser.wait_path("/search?q=Mail")


def test_a_button_is_reached_and_pressed_by_tab(browser: Browser) -> None:
    push()
    browser.open("/queues")
    browser.wait_text("mail", "tbody th")  # the facts may be those of the test before
    browser.wait_text("Pause", "td .actions")
    for _ in range(30):
        browser.press("TAB")
        if browser.run("return document.activeElement.innerText") == "Pause":
            break
    browser.press("ENTER")
    browser.wait_text("Paused mail", ".flash")


def test_every_page_works_without_javascript(browser: Browser) -> None:
    push()
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        wait_until(lambda: _offers_a_pause(browser), what="the queue as it is now")
        browser.find("form[action$='/queue/pause'] button").click()
        wait_until(lambda: forkq.api.Queue("mail").paused, what="the pause")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def _offers_a_pause(browser: Browser) -> bool:
    """The facts of a page may be a second old, and those of the test before."""
    browser.open("/queues")
    return bool(browser.all("form[action$='/queue/pause'] button"))
