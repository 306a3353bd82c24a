"""How children ended is counted in Redis, by the children that follow them."""

from __future__ import annotations

import signal
from typing import Any

from redis import Redis

from tests.process.shared import APP, Journal, workers
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until


def test_a_crash_and_a_restart_are_counted_by_reason(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)

    def count(how: str) -> int:
        found: Any = redis.hget("forkq:totals:children", f"{how}|n")
        return int(found or 0)

    workers(forkq)[0].kill()
    wait_until(lambda: count("crash|SIGKILL") == 1, what="the crash", deadline=60)
    workers(forkq)[0].send_signal(signal.SIGTERM)
    wait_until(lambda: count("restart|stopped") == 1, what="the restart", deadline=60)
    assert count("crash|SIGKILL") == 1
    assert forkq.stop() == 0
