"""The rules of forkq.toml and the commands, in real trees: from the file to the fetch."""

from __future__ import annotations

from redis import Redis

from forkq.wire.keys import Keys
from tests.process.shared import APP, Journal, push_many, settled
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

KEYS = Keys()
QUEUES = ("default", "tenant-a", "tenant-b")
CONFIG = """
[capsules.default]
queues = ["default", "tenant-*"]
concurrency = 5
workers = 2
[limits]
default = 1
"tenant-*" = 2
"""


def test_the_limits_of_the_file_hold_until_they_are_changed_at_run_time(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """One of the queue, two of each tenant; set, paused and resumed while the tree runs."""
    gate = journal.path.with_name("open")
    env = {**journal.env, "FORKQ_REDIS": redis_server.url}
    forkq = tree(redis_server, app=APP, config=CONFIG, env=env)
    for queue in QUEUES:
        push_many(redis_server, "Gate", [[str(gate)]] * 5, queue=queue)

    def running() -> tuple[int, ...]:
        return tuple(redis.hlen(KEYS.inflight(name)) for name in QUEUES)

    wait_until(lambda: running() == (1, 2, 2), what="all that may run")
    assert forkq.run("limits", "set", "tenant-a", "4").returncode == 0
    wait_until(lambda: running() == (1, 4, 2), what="two more")
    assert forkq.run("pause", "default").returncode == 0
    assert forkq.run("limits", "unset", "default").returncode == 0
    assert forkq.run("limits", "reset", "tenant-a").returncode == 0
    assert running() == (1, 4, 2)  # nothing that runs is interrupted
    assert forkq.run("resume", "default").returncode == 0
    wait_until(lambda: running() == (4, 4, 2), what="every processor at work")
    gate.touch()
    wait_until(
        lambda: all(settled(redis, name) for name in QUEUES),
        deadline=60,
        what="the end of all jobs",
    )
    assert forkq.stop() == 0
