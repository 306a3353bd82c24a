"""The API reads the metrics that children, and Sidekiq's processes, write."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from redis import Redis

import forkq
from forkq import default_client
from forkq.api import Metrics
from forkq.child.heartbeat.stats import Tally, total
from forkq.child.heartbeat.stats_flush import StatsFlusher
from forkq.errors import ForkqError
from forkq.store import deploys
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server

AT = datetime(2026, 11, 21, 9, 59, 30, tzinfo=timezone.utc).timestamp()


@pytest.fixture(autouse=True)
def client(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[forkq.Client]:
    """The process's client, on an empty server."""
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(redis_server.url, environ={})
    yield client
    client.close()
