"""Servers that forkq cannot work with are refused before a child is forked; the least rights do."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from forkq.client import Client
from tests.support.documents import redis_rights
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

APP = """
import os, signal
import forkq

@forkq.job(name="Good")
def good(): forkq.current_job().progress(1, 2)

@forkq.job(name="Fails")
def fails(): raise ValueError("no")

@forkq.job(name="Kills")
def kills(): os.kill(os.getpid(), signal.SIGKILL)

@forkq.every("* * * * * *", overlap="skip")
@forkq.job(name="Tick", queue="tenant-cron")
def tick(): ...
"""
CONFIG = """
[capsules.default]
queues = ["default", "limited", "tenant-*"]
[limits]
limited = 1
[rates]
default = "1000/s"
"""
COMMANDS = (
    "push Good", "stats --days 2", "running", "limits set limited 2", "limits show", "pause other",
    "cron list", "mark-deploy v1", "find x",
)  # fmt: skip


def test_a_tree_and_its_commands_need_no_more_than_the_documented_rights(
    own_server: Server, tree: StartTree
) -> None:
    """Jobs, a schedule, retries, burial, cron, limits, rates, patterns, a killed child."""
    own_server.cli("ACL", "SETUSER", "least", *redis_rights("forkq"))
    url = own_server.url.replace("redis://", "redis://least:x@")
    running = tree(url, app=APP, config=CONFIG, env={"FORKQ_REDIS": url})
    client: Any = own_server.client()

    pusher = Client(url)
    pusher.push({"class": "Kills", "args": []})
    wait_until(lambda: client.zcard("dead"), deadline=30, what="the burial of the one that kills")
    for name, retry in (("Good", True), ("Fails", True), ("Fails", 0)):
        pusher.push({"class": name, "args": [], "retry": retry})
    pusher.push({"class": "Good", "args": [], "queue": "limited", "at": 1})
    pusher.push_bulk({"class": "Good", "args": [[], []], "queue": "tenant-a"})
    pusher.close()
    for command in COMMANDS:
        done = running.run(*command.split())
        assert done.returncode in (0, 1), done.stderr
    wait_until(
        lambda: {"Kills", "Fails"} <= _classes(client, "dead") and _classes(client, "retry"),
        deadline=40,
        what="a retry, and the burial of the one that fails",
    )
    wait_until(lambda: client.hlen("forkq:cron:last"), what="a tick")
    assert client.hexists("forkq:parameters", "Kills")
    assert running.stop() == 0
    refused = [_text(entry) for entry in own_server.cli("ACL", "LOG")]
    assert [entry for entry in refused if "config" not in entry] == []
    assert "NOPERM" not in running.log_text()


def _classes(client: Any, key: str) -> set[str]:
    return {json.loads(payload)["class"] for payload in client.zrange(key, 0, -1)}


def _text(entry: Any) -> str:
    fields = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True))
    return json.dumps({str(key): str(value) for key, value in fields.items()})


def test_a_missing_right_is_found_at_boot(own_server: Server, tree: StartTree) -> None:
    own_server.cli("ACL", "SETUSER", "least", *redis_rights("forkq"), "-ltrim", "-zadd")
    url = own_server.url.replace("redis://", "redis://least:x@")
    refused = tree(url, app=APP, ready=False)
    assert refused.wait() == 6
    assert "lacks rights that forkq needs: +ltrim +zadd" in refused.log_text()
    assert "Traceback" not in refused.log_text()


def test_a_replica_is_refused_at_boot(own_server: Server, tree: StartTree) -> None:
    """With a code of its own: after a failover the next start may find a master there."""
    own_server.cli("REPLICAOF", "127.0.0.1", 1)
    refused = tree(own_server, app=APP, ready=False)
    assert refused.wait() == 7
    assert "give the address of the master" in refused.log_text()


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("redis://127.0.0.1:1/0?foo=1", 2, "no option"),
        ("redis://127.0.0.1:1/0?protocol=2", 2, "RESP3"),
        ("rediss://127.0.0.1:1/0?ssl_ca_certs=/no/such.pem", 2, "No such file"),
    ],
)
def test_an_option_that_cannot_work_ends_the_start(
    tree: StartTree, url: str, code: int, said: str
) -> None:
    refused = tree(url, app=APP, ready=False)
    assert refused.wait() == code
    assert said in refused.log_text()
    assert "Traceback" not in refused.log_text()
    other = refused.run("stats", "--redis", url)
    assert "Traceback" not in other.stderr
    assert other.returncode in (2, 6)


def test_a_server_that_is_only_down_is_waited_for(own_server: Server, tree: StartTree) -> None:
    own_server.stop()
    waiting = tree(own_server, app=APP, ready=False)
    waiting.wait_log("waiting for it", deadline=30)
    own_server.start()
    waiting.wait_ready()
    os.kill(waiting.pid, signal.SIGTERM)
    assert waiting.wait() == 0
