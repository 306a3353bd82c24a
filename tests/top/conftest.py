"""This process pushes to, and `forkq top` looks at, the tests' server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

import forkq
from forkq import default_client
from tests.support.server import Server


@pytest.fixture
def client(redis: Redis, redis_server: Server) -> Iterator[Redis]:
    forkq.configure(redis_server.url)
    yield redis
    default_client.forget()
