"""Runs the jobs that wait, in threads of this process."""

from __future__ import annotations

from typing import Any

from tests.process.shared import wait_settled
from tests.redis.in_process_child import InProcessChild
from tests.support.server import Server


def run_waiting(server: Server) -> None:
    """Runs what the queue has. Retries are due at once: they ran before it is their time."""
    redis = server.client()
    retries: Any = redis.zrange("retry", 0, -1)
    for payload in retries:
        redis.zrem("retry", payload)
        redis.lpush("queue:default", payload)
    with InProcessChild(server.url):
        wait_settled(redis)
