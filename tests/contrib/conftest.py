"""Fixtures of the tests with other frameworks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

import forkq
from forkq import default_client, middleware, registry
from forkq.config import provided
from tests.support.postgres import Postgres
from tests.support.server import Server


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL for one test alone, which may restart it."""
    server = Postgres()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def pushes_here(redis: Redis, redis_server: Server) -> Iterator[Redis]:
    """The jobs of this test are pushed to the shared server."""
    default_client._default = forkq.Client(redis_server.url)
    yield redis
    default_client.forget()


@pytest.fixture
def clean_process() -> Iterator[None]:
    """What an integration changes in this process, it changes for one test. The jobs of other tests
    are not there meanwhile: forkq looks for a forkq.toml beside their modules."""
    jobs, periodic = dict(registry._jobs), dict(registry.periodic)
    chains = (middleware.server, middleware.client, middleware.pushes)
    members = [list(chain) for chain in chains]
    registry._jobs.clear()
    deaths, errors = list(registry.death_handlers), list(registry.error_handlers)
    around = list(registry.around_hooks)
    events = {name: list(handlers) for name, handlers in registry._events.items()}
    yield
    registry._jobs.clear()
    registry._jobs.update(jobs)
    registry.periodic.clear()
    registry.periodic.update(periodic)
    for chain, before in zip(chains, members, strict=True):
        chain.members[:] = before
    for name, handlers in events.items():
        registry._events[name][:] = handlers
    registry.death_handlers[:], registry.error_handlers[:] = deaths, errors
    registry.around_hooks[:] = around
    provided.use(None)
    default_client.forget()
