"""docs/troubleshooting.md: what the commands print in each trouble is what the page shows."""

from __future__ import annotations

import pytest

from forkq.client import Client
from tests.support.documents import ROOT, snippets
from tests.support.printed import assert_shown
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

PAGE = ROOT / "docs" / "troubleshooting.md"
APP = """
import forkq

@forkq.job(name="shop.typo", queue="QUEUE")
def typo(): ...
"""
SERVED = """
[forkq]
app = "jobs"

[capsules.default]
queues = ["default", "mail"]
"""
SLOW = """
import time
import forkq

@forkq.job(name="Slow")
def slow():
    while True:
        time.sleep(0.01)
"""
BROKEN = "def f(:\n"


def printed(word: str) -> str:
    """The one output of the page that contains this word."""
    (found,) = [each.text for each in snippets(PAGE, "text") if word in each.text]
    return found


@pytest.fixture
def forkq(tree: StartTree, redis_server: Server) -> ForkqTree:
    return tree(redis_server, app=APP.replace("QUEUE", "mail"), config=SERVED)


def test_a_queue_that_no_process_serves(forkq: ForkqTree, redis_server: Server) -> None:
    redis_server.cli("SADD", "queues", "mial")
    redis_server.cli("LPUSH", "queue:mial", "{}")
    done = forkq.run("doctor", "--redis", redis_server.url)
    assert_shown(printed("no process serves queue mial"), done.stdout)
    (forkq.cwd / "jobs.py").write_text(APP.replace("QUEUE", "mial"))
    checked = forkq.run("config", "check")
    assert checked.returncode == 1
    shown = checked.stderr.replace(str(forkq.cwd), "/srv/shop")
    assert_shown(printed("no capsule in").removeprefix("forkq: "), shown)


def test_a_paused_queue_and_a_quiet_tree(forkq: ForkqTree, redis_server: Server) -> None:
    forkq.run("pause", "mail", "--redis", redis_server.url)
    assert "paused" in forkq.run("limits", "show", "--redis", redis_server.url).stdout
    assert forkq.run("quiet").returncode == 0
    shown = wait_until(
        lambda: (
            "quiet (default.0 quiet" in (text := forkq.run("status", "--ready").stderr) and text
        ),
        what="the quiet tree",
    )
    assert_shown(printed("is not ready: quiet"), str(shown))


def test_a_restart_that_was_rolled_back(forkq: ForkqTree) -> None:
    (forkq.cwd / "jobs.py").write_text(BROKEN)
    assert forkq.run("restart", "--wait").returncode == 1
    shown = forkq.run("status").stdout.replace(str(forkq.cwd), "/srv/shop")
    assert_shown(printed("rolled back"), shown)


def test_an_app_that_cannot_boot(redis_server: Server) -> None:
    env = {"FORKQ_LOG_FORMAT": "console"}
    tree = ForkqTree(redis_server, app=BROKEN, env=env)
    try:
        assert tree.start().wait() == 3
        words = tree.log_text().split()
        for word in printed("giving up").replace("/srv/shop", str(tree.cwd)).split():
            assert word in words, f"{word} of the page is not in the log:\n{tree.log_text()}"
    finally:
        tree.close()


def test_a_server_that_may_delete_jobs(tree: StartTree, own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1gb")
    forkq = tree(own_server, app=APP.replace("QUEUE", "mail"))
    done = forkq.run("doctor", "--redis", own_server.url)
    assert_shown(printed("eviction"), done.stdout)


def test_a_job_that_a_time_limit_has_ended(tree: StartTree, redis_server: Server) -> None:
    forkq = tree(redis_server, app=SLOW)
    client = Client(redis_server.url)
    jid = client.push({"class": "Slow", "args": [], "timeout": 0.1})
    client.close()
    assert jid is not None
    wait_until(
        lambda: "TimeLimit" in forkq.run("find", jid, "--redis", redis_server.url).stdout,
        what="the failed job",
    )
