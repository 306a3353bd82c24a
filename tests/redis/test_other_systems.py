"""Pushing works where forkq's workers do not: on Windows, which has no fork, no poll, no users.

This program takes away what Windows lacks, then pushes to a real server. What it cannot show: how
Python and redis-py behave on a real Windows.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from forkq.store.polling import readable
from tests.support.server import Server
from tests.support.tree import CHECKOUT

# asyncio and redis-py choose by sys.platform what they import, so they come first.
WITHOUT_UNIX = """
import select, subprocess
del select.poll, select.epoll
import asyncio, concurrent.futures.thread, logging, multiprocessing, os, random, redis
import signal, socket, sys, tempfile, threading

ABSENT = {
    os: '''fork forkpty register_at_fork getuid geteuid getgid getegid getpgid setsid setpgid killpg
        wait4 waitid pidfd_open sysconf statvfs mkfifo chown O_NOFOLLOW O_CLOEXEC O_NONBLOCK
        O_NOCTTY WNOHANG set_blocking getloadavg''',
    signal: '''SIGUSR1 SIGUSR2 SIGHUP SIGCHLD SIGTSTP SIGTTIN SIGTTOU SIGKILL SIGPIPE SIGQUIT
        SIGALRM pthread_sigmask sigpending sigwait alarm''',
    socket: "AF_UNIX MSG_DONTWAIT socketpair SO_REUSEPORT TCP_USER_TIMEOUT",
}
for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty", "pty"):
    sys.modules[name] = None
"""
PUSHES = """
import forkq, jobs
print(jobs.mail.perform_async(1), jobs.mail.perform_in(60, 2), *jobs.mail.perform_bulk([[3], [4]]))
print(forkq.Queue("mail").size)
try:
    forkq.configure("embedded").push({"class": "X", "args": []})
except forkq.ForkqError as error:
    print("refused:", error)
"""
# Django loads models, and the views that use them, in a project only.
DJANGO_PROJECT = """
import django, django.conf
apps = [f"django.contrib.{name}" for name in ("contenttypes", "auth", "messages", "admin")]
django.conf.settings.configure(INSTALLED_APPS=[*apps, "forkq.contrib.django"])
django.setup()
"""


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "jobs.py").write_text(
        "import forkq\n@forkq.job(queue='mail')\ndef mail(n: int) -> None: ...\n"
    )
    command = [sys.executable, "-X", "faulthandler", "-c", f"{WITHOUT_UNIX}\n{program}"]
    env = {"PYTHONPATH": f"{CHECKOUT}:{folder}", "HOME": str(folder), "PATH": ""}
    env["EVENTLET_TESTS"] = "1"  # else eventlet warns of its age, if it is installed
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_app_pushes_without_anything_of_unix(
    redis: Redis, redis_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "forkq.toml").write_text(
        f'[redis]\nurl = "{redis_server.url}"\n[capsules.default]\nqueues = ["mail"]\n'
    )
    done = run(tmp_path, PUSHES)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    jids, size, embedded = done.stdout.splitlines()
    payloads: Any = [*redis.lrange("queue:mail", 0, -1), *redis.zrange("schedule", 0, -1)]
    assert {json.loads(each)["jid"] for each in payloads} == set(jids.split())
    assert size == "3"
    assert embedded.startswith("refused: ")


def test_all_that_a_web_app_imports_loads_without_unix(tmp_path: Path) -> None:
    """Each module of contrib but those that only a child loads."""
    package = CHECKOUT / "forkq/contrib"
    files = [file.relative_to(CHECKOUT) for file in package.rglob("*.py")]
    of_child = {"django/app.py", "django/__main__.py", "flask/app.py"}
    names = [
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if str(file.relative_to("forkq/contrib")) not in of_child | {"django/tasks.py"}
        and not file.match("task_*.py")
    ]
    assert "forkq.contrib.fastapi" in names
    lines = [f"importlib.import_module({name!r})" for name in ("forkq.testing.plugin", *names)]
    done = run(tmp_path, "\n".join(["import importlib", DJANGO_PROJECT, *lines]))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_says_that_it_needs_unix(tmp_path: Path) -> None:
    program = "import forkq.__main__\nsys.argv[1:] = ['start', '-r', 'jobs']\nforkq.__main__.main()"
    done = run(tmp_path, program)
    assert done.returncode == 2
    assert "forkq start needs a Unix" in done.stderr
    assert "Traceback" not in done.stderr


def test_waiting_for_descriptors_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert readable([ours.fileno()], 0.01) == []
        theirs.send(b"x")
        assert readable([ours.fileno(), theirs.fileno()], 5.0) == [ours.fileno()]
