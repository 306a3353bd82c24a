"""A connection that a test can cut, delay or silence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkq.store.connection import RedisConnection
from tests.redis.proxy import Proxy
from tests.support.server import Server


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
