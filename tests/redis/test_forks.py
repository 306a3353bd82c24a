"""A process forks while another thread pushes for the first time: the child can push, too.

Each program runs in an interpreter of its own, since what is imported once stays so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from redis import Redis

from tests.support.server import Server
from tests.support.tree import CHECKOUT

BEGINNING = """
import importlib, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")  # that a process with threads forks is the point
import forkq
from forkq import default_client
URL = {url!r}

def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0)
"""
END = """
pid = os.fork()
if pid == 0:
    signal.alarm(60)  # a child that hangs ends by this
    push("child")
    os._exit(0)
release()
thread.join(20)
sys.exit(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
"""

FIRST_PUSH = """
def push(who):
    forkq.configure(URL, environ={{}}).push({{"class": "MyJob", "args": [who]}})

thread = threading.Thread(target=push, args=["parent"])
thread.start()
release = lambda: None
wait_for(lambda: {seen!r} in sys.modules)  # and its import goes on
"""
SHARED_CLIENT = """
client = forkq.Client(URL)

def push(who):
    client.push({{"class": "MyJob", "args": [who]}})

thread = threading.Thread(target=push, args=["parent"])
thread.start()
release = lambda: None
wait_for(lambda: "forkq.store.connection" in sys.modules)
"""
ANOTHER_IMPORT = """
def push(who):
    forkq.Client(URL).push({{"class": "MyJob", "args": [who]}})

def work():
    importlib.import_module("redis")
    push("parent")

thread = threading.Thread(target=work)
thread.start()
release = lambda: None
wait_for(lambda: "redis" in sys.modules)
"""
LATE_API = """
def push(who):
    forkq.configure(URL, environ={{}}).push({{"class": "MyJob", "args": [who]}})
    assert forkq.Queue("default").size > 0

thread = threading.Thread(target=push, args=["parent"])
thread.start()
release = lambda: None
wait_for(lambda: "forkq.api" in sys.modules)
"""
LATE_CONFIG = """
import forkq.store.connection  # a fork must wait for the import of config alone
os.environ["FORKQ_REDIS"] = URL

def push(who):
    default_client.default().push({{"class": "MyJob", "args": [who]}})

thread = threading.Thread(target=push, args=["parent"])
thread.start()
release = lambda: None
wait_for(lambda: "forkq.config.schema" in sys.modules)  # and the import of config goes on
"""
LATE_CRON = """
import forkq.store.connection
@forkq.job(name="MyJob")
def job(who): ...

def push(who):
    forkq.every("* * * * *", name=who, args=[who])(job)
    forkq.Client(URL).push({{"class": "MyJob", "args": [who]}})

thread = threading.Thread(target=push, args=["parent"])
thread.start()
release = lambda: None
wait_for(lambda: "forkq.cron" in sys.modules)
"""
DEFAULT_CLIENT = """
os.environ["FORKQ_REDIS"] = URL
go_on, inside = threading.Event(), threading.Event()
release = go_on.set
from forkq.config import load as loader
load = loader.load

def slow_load(*arguments):
    inside.set()
    if threading.current_thread() is not threading.main_thread():
        go_on.wait(20)
    return load(*arguments)

loader.load = slow_load

def push(who):
    default_client.default().push({{"class": "MyJob", "args": [who]}})

thread = threading.Thread(target=push, args=["parent"])
thread.start()
inside.wait(20)  # the thread holds the lock of the default client
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(FIRST_PUSH.replace("{seen!r}", '"redis"'), id="redis is being imported"),
        pytest.param(FIRST_PUSH.replace("{seen!r}", '"asyncio"'), id="what redis needs is"),
        pytest.param(SHARED_CLIENT, id="a client of both"),
        pytest.param(ANOTHER_IMPORT, id="redis is imported by the app"),
        pytest.param(LATE_API, id="the late api"),
        pytest.param(LATE_CONFIG, id="the late config"),
        pytest.param(LATE_CRON, id="the late schedules"),
        pytest.param(DEFAULT_CLIENT, id="the default client is being made"),
    ],
)
def test_a_child_forked_during_the_first_push_of_another_thread_can_push(
    redis: Redis, redis_server: Server, program: str
) -> None:
    source = (BEGINNING + program + END).format(url=redis_server.url)
    subprocess.run([sys.executable, "-c", source], cwd=CHECKOUT, check=True, timeout=60)
    jobs: Any = redis.lrange("queue:default", 0, -1)
    assert sorted(json.loads(job)["args"] for job in jobs) == [["child"], ["parent"]]


def test_after_a_fork_the_child_does_not_use_the_parents_connection(
    redis: Redis, redis_server: Server
) -> None:
    source = f"""
import os, sys, forkq
client = forkq.Client({redis_server.url!r})
with client.connection() as connection:
    connection.call("CLIENT", "SETNAME", "parents")
    pid = os.fork()
with client.connection() as connection:
    name = connection.call("CLIENT", "GETNAME")
if pid == 0:
    os._exit(0 if name != b"parents" else 1)
assert name == b"parents"
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", source], cwd=CHECKOUT, check=True, timeout=120)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_nothing_is_imported_later_than_a_fork_waits_for(redis_server: Server, kind: str) -> None:
    """A fork could happen while a push or a question imports a module."""
    url = redis_server.unix_url
    if kind == "tcp":
        url = redis_server.url.replace("127.0.0.1", "localhost")
    source = f"""
import importlib, sys, forkq
from forkq.store import route
for name in route._LATE:
    importlib.import_module(name)
before = set(sys.modules)

@forkq.every("*/5 * * * *", tz="Europe/Berlin", name="report")
@forkq.job
def report(): ...

client = forkq.configure({url!r}, environ={{}})
jid = client.push({{"class": "MyJob", "args": [1]}})
client.push_bulk({{"class": "MyJob", "args": [[1]], "at": 60}})
forkq.Queue("default").size, forkq.is_alive(jid), forkq.Queue("default").pause()
assert set(sys.modules) == before, set(sys.modules) - before
"""
    subprocess.run([sys.executable, "-c", source], cwd=CHECKOUT, check=True, timeout=120)
