"""When a child dies, one line says how it died, and with which jobs; so does each job's record."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    payloads,
    push,
    push_many,
    wait_events,
    wait_settled,
    wait_swept,
)
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

JSON = ["--log-format", "json"]


def test_a_segfault_leaves_its_python_stack(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """In the line about the child, in the record of the job, and in `forkq find`."""
    forkq = tree(redis_server, app=APP, args=["-c", "3", *JSON], env=journal.env)
    door = journal.path.with_name("open")
    [neighbour] = push_many(redis_server, "Gate", [[str(door)]])
    journal.wait("begin", [neighbour])
    wait_swept(redis, forkq)
    jid = push(redis_server, "Segfault")
    wait_until(lambda: redis.zcard("dead"), deadline=60, what="the burial")
    door.touch()
    wait_settled(redis)
    first = wait_events(forkq, "child died")[0]
    assert first["how"] == "SIGSEGV"
    in_progress = [text.split(" (") for text in first["in_progress"].split(", ")]
    assert {f"Segfault {jid}", f"Gate {neighbour}"} == {job for job, _ in in_progress}
    times = [ran.rstrip(")").split() for _, ran in in_progress]
    seconds = [float(number) / (1000 if unit == "ms" else 1) for number, unit in times]
    assert max(seconds) < first["uptime"]
    assert "in segfault" in first["stack"]
    assert first["uptime"] > 0
    assert int(first["peak"].removesuffix("MB")) > 5
    [dead] = payloads(redis, "dead")
    assert all("in segfault" in crash["stack"] for crash in dead["forkq"]["crashes"])
    found = json.loads(forkq.run("find", jid, "--json", "--redis", redis_server.url).stdout)
    assert [crash["jobs"] for crash in found["crashes"]] == [2, 1, 1, 1]
    text = forkq.run("find", jid, "--redis", redis_server.url).stdout
    assert all(0 <= crash["ran"] < first["uptime"] + 60 for crash in found["crashes"])
    assert len(re.findall(r"SIGSEGV after [\d.]+ m?s, peak ", text)) == 4
    assert text.count("MB, alone, on ") == 3
    assert text.count("MB, with 2 jobs in progress, on ") == 1
    assert "in segfault" in text
    assert forkq.stop() == 0


@pytest.mark.parametrize(("name", "args"), [("Die", [9]), ("Exit", [3])], ids=["Die", "Exit"])
def test_a_child_that_dies_without_a_word_leaves_no_stack(
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    name: str,
    args: list[Any],
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "1", *JSON], env=journal.env)
    wait_swept(redis, forkq)
    push(redis_server, name, *args)
    wait_until(lambda: redis.zcard("dead"), deadline=60, what="the burial")
    wait_events(forkq, "child died", 3)
    assert not any("stack" in line for line in events(forkq, "child died"))
    assert forkq.stop() == 0


def test_a_crash_of_a_jobs_own_fork_is_not_the_childs(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    app = APP.read_text() + (
        "\n\n@forkq.job(name='ForkAndDie')\n"
        "def fork_and_die() -> None:\n"
        "    if (pid := os.fork()) == 0:\n"
        "        ctypes.string_at(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    record('begin')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    forkq = tree(redis_server, app=app, args=["-c", "1", *JSON], env=journal.env)
    push(redis_server, "ForkAndDie")
    wait_until(lambda: redis.zcard("dead"), deadline=60, what="the burial")
    [dead] = payloads(redis, "dead")
    assert not any("stack" in crash for crash in dead["forkq"]["crashes"])
    assert forkq.stop() == 0
