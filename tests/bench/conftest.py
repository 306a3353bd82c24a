"""What the benchmarks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own, without persistence."""
    server = Server(tcp=True).start()
    yield server
    server.close()
