"""Several Redis: each job runs where its queue is, a server that dies stops only its own queues,
and nothing is lost that it has kept."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import psutil
import pytest
from redis import Redis

from forkq.config.shards import Shard
from forkq.errors import ServerUnavailable
from forkq.sharded_client import ShardedClient
from tests.process.shared import APP, Journal, leased, waiting, workers
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

NAMES = ("default", "mail", "bulk")


class Shards:
    """Three servers with an append-only file each, and a tree's configuration for them."""

    def __init__(self, stack: ExitStack) -> None:
        self.servers = {name: Server(tcp=True, aof=True).start() for name in NAMES}
        for server in self.servers.values():
            stack.callback(server.close)
        self.client = stack.enter_context(closing(self._client()))

    def _client(self) -> ShardedClient:
        shards = [Shard(name, server.url, (name,)) for name, server in self.servers.items()]
        return ShardedClient(shards, "default", shards[0].url)

    def config(self, *queues: str) -> str:
        rows = [
            f'[[redis.shards]]\nname = "{name}"\nurl = "{self.servers[name].url}"\n'
            f'queues = ["{name}"]'
            for name in NAMES[1:]
        ]
        url = f'[redis]\nurl = "{self.servers["default"].url}"'
        capsule = f"[capsules.default]\nconcurrency = 2\nqueues = {json.dumps(queues)}"
        return "\n".join([url, *rows, capsule])

    def push(self, name: str, *args: object, queue: str, **more: object) -> str:
        jid = self.client.push({"class": name, "args": [*args], "queue": queue, **more})
        assert jid is not None
        return jid


@pytest.fixture
def shards() -> Iterator[Shards]:
    with ExitStack() as stack:
        yield Shards(stack)


class Pushes:
    """A job for each queue in turn, until the end of the block. ``jids``: those that a server has
    taken, by queue, as the pushes told; a push that failed counts for nothing."""

    def __init__(self, shards: Shards) -> None:
        self.jids: dict[str, list[str]] = {name: [] for name in NAMES}
        self.failed: list[ServerUnavailable] = []
        self._shards = shards
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(name,)) for name in NAMES]

    def __enter__(self) -> Pushes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, queue: str) -> None:
        while not self._over.wait(0.01):
            try:
                self.jids[queue].append(self._shards.push("Quick", 0.001, queue=queue))
            except ServerUnavailable as error:
                self.failed.append(error)

    def wait_for(self, queue: str, more: int) -> None:
        """Until so many more jobs are in that queue."""
        target = len(self.jids[queue]) + more
        wait_until(lambda: len(self.jids[queue]) >= target, what=f"{more} pushes to {queue}")


def _is_empty(redis: Redis, queue: str) -> bool:
    return not (waiting(redis, queue) or leased(redis, queue))


def test_a_server_that_dies_loses_no_job_and_stops_no_other_queue(
    shards: Shards, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(app=APP, config=shards.config(*NAMES), env=journal.env)
    later = shards.push("Quick", 0.0, queue="mail", at=0.5)  # in the schedule of that shard
    with Pushes(shards) as pushes:
        for queue in NAMES:
            pushes.wait_for(queue, 20)
        shards.servers["mail"].kill()
        wait_until(lambda: pushes.failed, what="a push that fails")
        before = {queue: len(pushes.jids[queue]) for queue in ("default", "bulk")}
        for queue in before:
            pushes.wait_for(queue, 20)
        for queue, count in before.items():  # pushed and run while the server is away
            journal.wait("end", pushes.jids[queue][count : count + 20])
        shards.servers["mail"].start()
        pushes.wait_for("mail", 20)
    journal.wait("end", [later, *(jid for jids in pushes.jids.values() for jid in jids)])
    assert all("shard mail" in str(error) for error in pushes.failed)
    for name, server in shards.servers.items():  # each had its own jobs, and has none left
        with server.client() as redis:
            wait_until(partial(_is_empty, redis, name), what=f"the end of all jobs on {name}")
            assert redis.smembers("queues") == {name.encode()}
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_a_child_that_dies_is_rescued_while_another_shard_hangs(
    shards: Shards, tree: StartTree, journal: Journal
) -> None:
    """Each shard has a rescue of its own; the retry of a job is on the shard of its queue."""
    forkq = tree(app=APP, config=shards.config(*NAMES), env=journal.env)
    jids = {queue: shards.push("Nap", 60, queue=queue) for queue in ("mail", "bulk")}
    journal.wait("begin", jids.values())
    by_jid = {line.jid: line.pid for line in journal.lines("begin")}
    shards.servers["bulk"].pause()
    for pid in by_jid.values():
        next(child for child in workers(forkq) if child.pid == pid).kill()
    wait_until(lambda: len(journal.runs()[jids["mail"]]) == 2, what="the rescue on mail")
    assert len(journal.runs()[jids["bulk"]]) == 1
    shards.servers["bulk"].resume()
    wait_until(lambda: len(journal.runs()[jids["bulk"]]) == 2, what="the rescue on bulk")


def test_jobs_that_a_change_has_left_on_another_shard_run(
    shards: Shards, tree: StartTree, journal: Journal
) -> None:
    """The queue was the default shard's before. New jobs go to its new shard at once, and its
    child on the old one runs what is left: waiting, and scheduled. On a shard that has none of its
    queues a tree has no process."""
    old = Shard("default", shards.servers["default"].url)
    with closing(ShardedClient([old], "default", old.url)) as before:
        job = {"class": "Quick", "args": [0.0], "queue": "mail"}
        left = [before.push(job), before.push({**job, "at": 0.5})]
    new = shards.push("Quick", 0.0, queue="mail")
    config = shards.config("default", "mail")
    forkq = tree(app=APP, config=config, env=journal.env)
    journal.wait("end", [new, *(jid for jid in left if jid)])
    names = [child["name"] for child in forkq.status()["children"]]
    assert sorted(names) == [
        *("clock", "clock@mail", "default.0", "default@mail.0"),
    ]


def test_a_canary_on_another_shard_than_its_slot_is_rescued(
    shards: Shards, tree: StartTree, journal: Journal
) -> None:
    """The new configuration has no capsule on ``mail``, so the canary in the slot of that one runs
    the jobs of the default shard. When it dies, the master returns them, and no sweep."""
    forkq = tree(app=APP, config=shards.config("default", "mail"), env=journal.env)
    busy = [shards.push("Nap", 60, queue="default") for _ in range(2)]
    journal.wait("begin", busy)  # the old child has no processor left
    jids = [shards.push("Nap", 60, queue="default") for _ in range(4)]
    (forkq.cwd / "forkq.toml").write_text(shards.config("default"))
    forkq.signal(signal.SIGUSR2)
    journal.wait("begin", jids)
    pids = {child["name"]: child["pid"] for child in forkq.status()["children"]}
    canary = psutil.Process(pids["default@mail.canary"])
    mine = [line.jid for line in journal.lines("begin") if line.pid == canary.pid]
    assert len(mine) == 2
    canary.kill()
    forkq.wait_log(rf"jobs rescued.*:{canary.pid}:")
