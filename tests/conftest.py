"""Fixtures that every test may ask for. Each ends what it started, and nothing else."""

from __future__ import annotations

import compileall
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

import forkq
from forkq.wire import times
from tests.support.leaks import OpenResources
from tests.support.server import Server
from tests.support.tree import StartTree


@pytest.fixture(autouse=True)
def host_time() -> Iterator[None]:
    """A child or a clock in this process may have measured the server's time: forget it."""
    yield
    times.follow_host()


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the package once, as pip does for a user. The tests start hundreds of forkq
    processes, and where PYTHONDONTWRITEBYTECODE is set, each would compile what it imports."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(forkq.__file__).parent, quiet=2)


def pytest_xdist_auto_num_workers() -> int:
    """More workers than processors: most tests wait for other processes most of their time."""
    return (cores := os.cpu_count() or 1) + min(cores + 1, 4)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves descriptors, threads or processes behind in the test process.

    After the fixtures of wider scope it is the first to be set up, and so the last to be torn down.
    """
    resources = OpenResources()
    yield
    if request.node.get_closest_marker("interrupts"):
        return
    request.node.funcargs.clear()  # pytest itself would hold the fixtures' values a little longer
    left = resources.left()
    assert not left, "left open by this test:\n" + "\n".join(left)


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
    redis_server.close_clients()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A running server with AOF for one test alone, which may stop, kill, pause or restart it."""
    server = Server(tcp=True, aof=True).start()
    yield server
    server.close()


@pytest.fixture
def tree() -> Iterator[StartTree]:
    """Starts forkq as a user does: `tree(server, app=..., args=...)` returns a ForkqTree."""
    trees = StartTree()
    yield trees
    trees.close()
