"""The process's client, the commands' environment, and a connection that a test can cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

import forkq
from forkq import default_client
from forkq.store.connection import RedisConnection
from tests.redis.proxy import Proxy
from tests.redis.shell import Shell
from tests.support.declared_keys import guard_all
from tests.support.loops import LOOPS, Run, run_of
from tests.support.server import Server

guard_all()


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: Proxy) -> Iterator[RedisConnection]:
    """A connection through ``proxy``."""
    connection = RedisConnection(proxy.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def client(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[forkq.Client]:
    """The process's client, on an empty server."""
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(redis_server.url, environ={})
    yield client
    client.close()


@pytest.fixture
def environment(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Commands run in an empty folder, on an empty server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORKQ_REDIS", redis_server.url)
    monkeypatch.setattr(default_client, "_default", None)
    yield
    if default_client._default is not None:
        default_client._default.close()


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capfd)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """``asyncio.run``, and the same of uvloop where that is installed."""
    return run_of(request.param)
