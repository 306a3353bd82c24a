"""The web UI in this process (`web`), and in a real browser (`browser`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from redis import Redis
from starlette.testclient import TestClient

import forkq
from forkq import default_client
from forkq.web import create_app
from tests.support import bound
from tests.support.server import Server
from tests.web.browser import Browser, start_browser


@pytest.fixture
def api_client(redis: Redis, redis_server: Server) -> Iterator[None]:
    """This process pushes to, and asks, the tests' server."""
    forkq.configure(redis_server.url)
    yield
    default_client.forget()


@pytest.fixture
def web(api_client: None) -> Iterator[TestClient]:
    """The web UI, asked without a network."""
    client = TestClient(
        create_app(),
        base_url="http://localhost",
        client=("127.0.0.1", 1),
        follow_redirects=False,
        raise_server_exceptions=True,
    )
    with client:
        yield client


@pytest.fixture(scope="session")
def web_server(shared_server: Server) -> Iterator[str]:
    """The URL of the web UI of the tests' server, in a process of its own."""
    command = bound.command([sys.executable, "-m", "tests.web.serve", shared_server.url])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as web:
        assert web.stdout is not None
        assert web.stdin is not None
        yield f"http://127.0.0.1:{int(web.stdout.readline())}"
        web.stdin.close()
        web.wait(20)


@pytest.fixture(scope="session")
def _chromium(web_server: str) -> Iterator[Browser]:
    with start_browser(web_server) as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Browser, redis: Redis, api_client: None) -> Iterator[Browser]:
    """A real Chromium at the web UI. A test that leaves an error in its console fails."""
    _chromium.reset()
    yield _chromium
    assert _chromium.console_errors() == []
    _chromium.leave()
