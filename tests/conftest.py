"""Fixtures that every test may ask for. Each ends what it started, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from forkq import times
from tests.support.server import Server
from tests.support.tree import Forest


@pytest.fixture(autouse=True)
def host_time() -> Iterator[None]:
    """What a child or a clock in this process has measured is forgotten with its test."""
    yield
    times.follow_host()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """A running server, TCP and Unix socket, shared by the tests of one xdist worker."""
    server = Server(tcp=True).start()
    yield server
    server.close()


@pytest.fixture
def redis(redis_server: Server) -> Iterator[Redis]:
    """A client of the shared server, whose data has just been flushed."""
    client = redis_server.client()
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A running server with AOF for one test alone, which may stop, kill, pause or restart it."""
    server = Server(tcp=True, aof=True).start()
    yield server
    server.close()


@pytest.fixture
def tree() -> Iterator[Forest]:
    """Starts forkq as a user does: `tree(server, app=..., args=...)` returns a ForkqTree."""
    forest = Forest()
    yield forest
    forest.close()
