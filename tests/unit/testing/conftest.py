"""Every test here defines jobs of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkq import default_client, middleware, registry
from forkq.client import Client
from forkq.testing import stack


@pytest.fixture(autouse=True)
def own_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty registry, no middleware, and a client of a server that does not exist. What other
    tests have imported, such as the demo's jobs, is there again afterwards."""
    nowhere = Client("redis://127.0.0.1:1/0", connect_timeout=0.1)
    monkeypatch.setattr(default_client, "_default", nowhere)
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(registry, "error_handlers", [])
    chains = (middleware.client, middleware.server)
    members = [list(chain.members) for chain in chains]
    for chain in chains:
        chain.clear()
    before = stack.modes()
    yield
    assert stack.modes() == before, "a mode was entered and not left"
    for chain, earlier in zip(chains, members, strict=True):
        chain.members[:] = earlier
