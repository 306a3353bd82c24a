"""After an outage a page is live again within seconds, and meanwhile it says that it is not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from redis import Redis

from tests.support import bound
from tests.support.server import Server
from tests.support.waiting import wait_until, within
from tests.web.browser import Browser

pytestmark = pytest.mark.xdist_group("browser")

SOON = 3.0  # seconds from the end of an outage until the page is live


@contextmanager
def web_ui(redis_url: str, port: int = 0) -> Iterator[int]:
    """The web UI as a process of its own, at that port; its port."""
    command = bound.command([sys.executable, "-m", "tests.web.serve", redis_url, str(port)])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as web:
        assert web.stdout is not None
        yield int(web.stdout.readline())
        web.kill()


def push(redis: Redis) -> None:
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", "{}")


def sees(browser: Browser, jobs: int) -> None:
    """Waits until the page has that figure, and does not say that it is lost."""
    shown = f"{jobs}"
    live = "return [document.querySelector('td.number').innerText, lost.innerText]"
    wait_until(lambda: browser.run(live) == [shown, ""], what=f"{jobs} jobs, live", every=0.1)


@pytest.fixture
def page(_chromium: Browser, own_server: Server) -> Iterator[Browser]:
    """A browser at no page yet: its errors are those of the outage."""
    _chromium.reset()
    yield Browser(_chromium.driver, "")
    _chromium.leave()
    _chromium.console_errors()


def test_redis_that_hung(page: Browser, own_server: Server) -> None:
    """It answers nobody for longer than the time-out of a read."""
    with web_ui(own_server.url) as port:
        push(own_server.client())
        page.open(f"http://127.0.0.1:{port}/queues")
        sees(page, 1)
        own_server.pause()
        page.wait_text("not live", "#lost")
        own_server.resume()
        begin = time.monotonic()
        push(own_server.client())
        sees(page, 2)
        assert time.monotonic() - begin < within(SOON)


def test_a_web_server_that_was_gone(page: Browser, own_server: Server) -> None:
    """Its proxy answers meanwhile, with an error that ends an event stream for good."""
    push(own_server.client())
    with web_ui(own_server.url) as port:
        page.open(f"http://127.0.0.1:{port}/queues")
        sees(page, 1)
    page.wait_text("connection is lost", "#lost")
    with HTTPServer(("127.0.0.1", port), BadGateway) as proxy:
        Thread(target=proxy.serve_forever).start()
        wait_until(lambda: page.run("return source === null"), what="the refusal", every=0.1)
        proxy.shutdown()
    push(own_server.client())
    with web_ui(own_server.url, port):
        begin = time.monotonic()
        sees(page, 2)
        assert time.monotonic() - begin < within(SOON)


def test_a_connection_that_was_cut_without_a_word(page: Browser, own_server: Server) -> None:
    """No message comes any more: the page gives it up. The browser's clock is not waited for."""
    run_out = (
        "const real = window.setTimeout, kept = [];"
        "window.setTimeout = (call, after) => kept.push([call, after]);"
        "listen(); const [[call, after]] = kept; call(); window.setTimeout = real;"
        "real(...kept[1]); return [after, lost.textContent, source === null]"
    )
    with web_ui(own_server.url) as port:
        push(own_server.client())
        page.open(f"http://127.0.0.1:{port}/queues")
        sees(page, 1)
        wait_until(lambda: page.run("return source !== null"), what="the connection")
        assert page.run(run_out) == [
            25_000,
            "No news for 25 s: these figures are old. Trying again …",
            True,
        ]
        push(own_server.client())
        sees(page, 2)


class BadGateway(BaseHTTPRequestHandler):
    """A proxy whose server is gone."""

    def do_GET(self) -> None:
        self.send_error(502)

    def log_message(self, *_: object) -> None:
        """Nothing: the test says what it saw."""
