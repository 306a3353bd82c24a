"""`forkq doctor` as an operator runs it, and its short form in the log of `forkq start`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from forkq.client import Client
from tests.process.shared import json_log
from tests.support.server import Server
from tests.support.tree import FORKQ, ForkqTree, StartTree

CHECKS = [
    "open-files", "processes", "memory", "max-memory", "oom-group", "systemd", "kubernetes",
    "journal", "app", "cron", "preload", "redis", "version", "eviction", "persistence",
    "redis-memory", "latency", "clock",
    "rights", "timeout", "huge-pages", "overcommit", "clients", "buffers", "classes", "versions",
    "moves", "batches", "flows", "signals", "locks", "sidekiq",
    "damaged", "fleet", "silent", "refused", "loop", "leader", "due", "queues", "idle", "behind",
    "paused", "suspects", "held", "surge", "failing", "dead", "periodic", "asleep",
]  # fmt: skip
APP = """
import forkq

print("the app is imported")

@forkq.job(name="Good")
def good(): ...
"""
OPENING = """
import socket
import forkq

DOOR = socket.create_server(("127.0.0.1", 0))
"""
THREADED = """
import threading
import forkq

threading.Thread(target=threading.Event().wait, name="poller").start()
"""
MEMORY_GROUP = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def folder() -> Iterator[ForkqTree]:
    """A folder with an app; nothing is started in it."""
    tree = ForkqTree(app=APP)
    yield tree
    tree.close()


def doctor(
    folder: ForkqTree, url: str, *args: str, entry: str = "exec"
) -> subprocess.CompletedProcess[str]:
    """Runs it, in a shell if that is to execute ``entry`` before the command on the same line."""
    if entry == "exec":
        return folder.run("doctor", "-r", "jobs", "--redis", url, *args)
    command = [*FORKQ, "doctor", "-r", "jobs", "--redis", url, *args]
    return subprocess.run(
        ["bash", "-c", f"{entry} {shlex.join(command)}"],
        cwd=folder.cwd,
        env=folder.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """By check, of `forkq doctor --json`."""
    assert "Traceback" not in done.stderr
    return {(one := json.loads(line))["check"]: one for line in done.stdout.splitlines()}


def test_a_sound_service_is_ok_in_one_line_for_each_check(
    folder: ForkqTree, own_server: Server
) -> None:
    done = doctor(folder, own_server.url, "--grace", "45", "-c", "2")
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == CHECKS
    assert [line for line in lines if line.startswith("fail")] == []
    assert done.returncode == 0
    assert done.stderr == "the app is imported\n"  # what the app prints is no finding


def test_json_is_one_object_a_line(folder: ForkqTree, own_server: Server) -> None:
    done = doctor(folder, own_server.url, "--json", "--grace", "10")
    found = findings(done)
    assert list(found) == CHECKS
    assert found["kubernetes"] == {
        "level": "fail",
        "check": "kubernetes",
        "what": "the grace period is 10 s, a stop takes up to 30 s",
        "why": found["kubernetes"]["why"],
        "remedy": "set terminationGracePeriodSeconds to 30 and the time of a preStop hook",
        "checked": True,
    }
    assert done.returncode == 1


def test_a_server_that_is_down_fails_and_the_rest_is_checked(folder: ForkqTree) -> None:
    done = doctor(folder, "redis://:secret@127.0.0.1:1/0", "--json")
    found = findings(done)
    assert done.returncode == 1
    assert list(found) == CHECKS
    assert found["redis"]["level"] == "fail"
    assert "Connection refused" in found["redis"]["what"]
    assert "secret" not in done.stdout + done.stderr
    assert found["eviction"]["why"] == "there is no connection to Redis"
    assert found["app"]["level"] == "ok"


def test_a_wrong_password_and_a_hung_server_fail(folder: ForkqTree, own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "requirepass", "right")
    refused = findings(doctor(folder, own_server.url, "--json"))["redis"]
    assert refused["level"] == "fail"
    assert "redis://USER:PASSWORD@HOST" in refused["what"]
    own_server.pause()
    (folder.cwd / "forkq.toml").write_text("[redis]\ntimeout = 0.5\n")
    hung = doctor(folder, own_server.url, "--json")
    own_server.resume()
    assert findings(hung)["redis"]["level"] == "fail"
    assert hung.returncode == 1


def test_an_embedded_server_that_does_not_run_is_no_failure(folder: ForkqTree) -> None:
    done = doctor(folder, "embedded", "--json")
    found = findings(done)["redis"]
    assert (found["level"], found["checked"]) == ("warn", False)
    assert done.returncode == 0


def test_wrong_usage_and_configuration_have_exit_code_2(folder: ForkqTree) -> None:
    assert doctor(folder, "redis://127.0.0.1:1", "--unit", "/no/such.service").returncode == 2
    assert doctor(folder, "redis://127.0.0.1:1", "--grace", "-1").returncode == 2
    (folder.cwd / "forkq.toml").write_text("[forkq]\ntimeuot = 5\n")
    wrong = doctor(folder, "redis://127.0.0.1:1")
    assert wrong.returncode == 2
    assert "timeuot" in wrong.stderr
    assert wrong.stdout == ""


def test_an_app_that_cannot_be_imported_fails(folder: ForkqTree, own_server: Server) -> None:
    (folder.cwd / "jobs.py").write_text("import no_such_module\n")
    done = doctor(folder, own_server.url, "--json")
    found = findings(done)
    assert done.returncode == 1
    assert found["app"]["level"] == "fail"
    assert "no_such_module" in found["app"]["what"]
    assert (found["classes"]["checked"], found["preload"]["checked"]) == (False, False)


def test_middleware_that_no_coroutine_can_have_fails(folder: ForkqTree, own_server: Server) -> None:
    """It passes beside capsules of threads."""
    with (folder.cwd / "jobs.py").open("a") as app:
        app.write(
            "import forkq\n@forkq.middleware.server.append\ndef old(job, call): return call()\n"
        )
    passed = doctor(folder, own_server.url, "--json")
    assert findings(passed)["app"]["level"] == "ok"
    (folder.cwd / "forkq.toml").write_text('[capsules.io]\nkind = "async"\nqueues = ["*"]\n')
    failed = doctor(folder, own_server.url, "--json")
    assert (failed.returncode, findings(failed)["app"]["level"]) == (1, "fail")
    what = "the capsule 'io' is async, and its jobs cannot run inside the middleware"
    assert findings(failed)["app"]["what"].startswith(what)


def test_names_of_others_control_no_terminal(
    folder: ForkqTree, redis_server: Server, redis: Redis
) -> None:
    hostile = "\x1b[2J\x07\r\u202egone"
    with closing(Client(redis_server.url)) as client:
        client.push({"class": hostile, "args": []})
        client.push({"class": "Good", "args": [], "queue": "q"})
    redis.sadd("queues", f"q{hostile}")  # forkq pushes to no queue of that name, others may
    redis.rename("queue:q", f"queue:q{hostile}")
    lines, objects = (doctor(folder, redis_server.url, *more) for more in ((), ("--json",)))
    for done in (lines, objects):
        assert done.returncode == 1
        assert done.stdout.replace("\n", "").isprintable()
    assert "\\x1b[2J\\x07\\r\\u202egone" in lines.stdout


def test_the_limits_of_the_shell_count(folder: ForkqTree, own_server: Server) -> None:
    (folder.cwd / "forkq.toml").write_text("[redis]\npool = 100\n")
    done = doctor(folder, own_server.url, "--json", entry="ulimit -n 60; exec")
    assert findings(done)["open-files"]["level"] == "fail"
    assert done.returncode == 1


@pytest.mark.skipif(
    not os.access(MEMORY_GROUP / "cgroup.procs", os.W_OK),
    reason="needs a control group of version 1 for memory that this user may make",
)
def test_the_limit_of_a_real_control_group_counts(folder: ForkqTree) -> None:
    group = MEMORY_GROUP / f"forkq-doctor-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(300 << 20))
        enter = f"echo $$ > {group}/cgroup.procs; exec"
        url = "redis://127.0.0.1:1"
        large = findings(doctor(folder, url, "--json", "-w", "60", entry=enter))["memory"]
    finally:
        group.rmdir()
    assert large["level"] == "fail"
    assert "the limit of the control group is 300MB" in large["what"]


# The short form, at the start


def test_the_start_logs_what_is_not_ok(own_server: Server, tree: StartTree) -> None:
    """A failure is an error in the log, and the tree runs all the same. So it is told of children
    that may take more memory than there is."""
    own_server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1gb")
    own_server.cli("CONFIG", "SET", "appendonly", "no")
    config = '[forkq]\nmax_memory = "100TB"\nworkers = 2\n'
    running = tree(own_server, app=APP, config=config, args=["--log-format", "json"])
    logged = [json.loads(line) for line in running.log_text().splitlines() if line[0] == "{"]
    warned = {line["check"]: line for line in logged if "check" in line}
    assert set(warned) >= {"eviction", "persistence", "max-memory"}
    assert warned["eviction"]["level"] == "error"
    policy = "maxmemory-policy is allkeys-lru, maxmemory is 1GB"
    assert warned["eviction"]["event"] == policy
    assert warned["persistence"]["level"] == "warning"
    assert warned["persistence"]["remedy"] == "set appendonly yes"
    assert warned["max-memory"]["level"] == "warning"
    assert "may grow to" in warned["max-memory"]["event"]
    assert "max_memory" in warned["max-memory"]["remedy"]
    assert running.stop() == 0


def test_the_start_names_the_socket_that_a_preloaded_app_opens(
    own_server: Server, tree: StartTree
) -> None:
    running = tree(own_server, app=OPENING, config="[forkq]\npreload = true\n")
    assert f"sockets: {running.cwd}/jobs.py:5" in running.log_text()
    assert running.stop() == 0


def test_the_start_names_the_thread_that_a_preloaded_app_starts(
    own_server: Server, tree: StartTree
) -> None:
    refused = tree(own_server, app=THREADED, config="[forkq]\npreload = true\n", ready=False)
    assert refused.wait() == 3
    assert f"poller ({refused.cwd}/jobs.py:5)" in refused.log_text()


def test_a_sound_start_says_nothing_of_it(own_server: Server, tree: StartTree) -> None:
    running = tree(own_server, app=APP, args=["--log-format", "json"])
    found = {line.get("check") for line in json_log(running)}
    assert found <= {None, "latency"}  # a machine that is busy answers late
    assert running.stop() == 0
