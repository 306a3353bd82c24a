"""Every test here defines jobs of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkq import default_client, middleware, registry
from forkq.client import Client
from forkq.testing import stack


@pytest.fixture(autouse=True)
def own_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty registry, and a client of a server that does not exist."""
    nowhere = Client("redis://127.0.0.1:1/0", connect_timeout=0.1)
    monkeypatch.setattr(default_client, "_default", nowhere)
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(registry, "error_handlers", [])
    before = stack.modes()
    yield
    assert stack.modes() == before, "a mode was entered and not left"
    middleware.client.clear()
    middleware.server.clear()
