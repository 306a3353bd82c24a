"""Pushes of an app that runs under gevent or eventlet, as in a gunicorn with `-k gevent`.

Both replace Python's sockets in the whole process, so each test runs its app in one of its own.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.support.server import Server

CHECKOUT = Path(__file__).parents[2]
# What each library calls the replacing, a green thread, and a pause of one.
GEVENT = """
from gevent import monkey, sleep, spawn
monkey.patch_all()
"""
EVENTLET = """
from eventlet import monkey_patch, sleep, spawn
monkey_patch()
"""
LIBRARIES = [pytest.param(GEVENT, id="gevent"), pytest.param(EVENTLET, id="eventlet")]

HANGING = """
import os, signal, sys
from forkq import Client, ServerUnavailable

url, server = sys.argv[1], int(sys.argv[2])
client = Client(url, timeout=1.0)
client.push({"class": "MyJob", "args": []})
turns = 0

def count():
    global turns
    while True:
        turns += 1
        sleep(0.01)

spawn(count)
os.kill(server, signal.SIGSTOP)
turns = 0
try:
    client.push({"class": "MyJob", "args": []})
except ServerUnavailable as error:
    print(error, turns > 1)
"""

INTERRUPTED = """
import sys
from forkq import Client

client = Client(sys.argv[1])
wrong = []

def ask(number):
    with client.connection() as connection:
        found = connection.call("ECHO", f"{number}")
    if found != f"{number}".encode():
        wrong.append((number, found))

for turn in range(50):
    threads = [spawn(ask, number) for number in range(10)]
    sleep(turn * 0.00001)
    for thread in threads[::3]:
        thread.kill()
    sleep(0)
ask(-1)
print("wrong", wrong)
"""


def _is_installed(name: str) -> bool:
    """Also if this process may not import it."""
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def run(library: str, app: str, *arguments: object) -> str:
    """What ``app`` prints, run under ``library``."""
    name = "gevent" if library is GEVENT else "eventlet"
    if not _is_installed(name):
        pytest.skip(f"{name} is not installed: pip install --group test")
    command = [sys.executable, "-c", library + app, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=CHECKOUT, check=True, timeout=60, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("library", "socket"), [(GEVENT, "tcp"), (EVENTLET, "unix")], ids=["gevent", "eventlet"]
)
def test_a_push_to_a_redis_that_hangs_ends_with_its_time_out(
    own_server: Server, library: str, socket: str
) -> None:
    """The other green threads of the process go on meanwhile."""
    url = own_server.url if socket == "tcp" else own_server.unix_url
    said = run(library, HANGING, url, own_server.pid)
    assert "no answer within 1 s" in said
    assert said.endswith("True"), "no other green thread ran"


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_green_thread_gets_the_reply_to_one_that_was_killed(
    redis_server: Server, library: str
) -> None:
    assert run(library, INTERRUPTED, redis_server.url) == "wrong []"
