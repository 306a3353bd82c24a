"""Children that cannot boot: a clear message, an exit code, never a busy loop. And preloading."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import suppress

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    push,
    title,
    wait_events,
    wait_settled,
    workers,
)
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until, within

JSON = ["--log-format", "json"]
FAILURE = "child cannot boot; trying again"
PRELOAD = {"FORKQ_PRELOAD": "true"}
# An app that needs a database.
CONNECT = """
import os, socket
import forkq

@forkq.job(name="Touch")
def touch(): pass

def connect():
    socket.create_connection(("127.0.0.1", int(os.environ["DATABASE"])), 2).close()
"""
# When it connects: it fails to boot in three ways.
ENDS = {
    "startup": "forkq.on('startup')(connect)\n",
    "import": "connect()\n",
    "import-error": (
        "try:\n    connect()\n"
        "except OSError as error:\n    raise ImportError('no driver') from error\n"
    ),
}


@pytest.mark.parametrize(
    ("target", "named", "preload"),
    [
        ("no_such_module", "no_such_module", False),
        ("no_such_module", "no_such_module", True),
        ("jobs.no_such_part", "jobs.no_such_part", False),
        ("jobs:no_such_name", "no_such_name", True),
        ("./no_such_file.py", "no_such_file.py", False),
    ],
)
def test_an_app_that_does_not_exist(
    redis_server: Server, tree: StartTree, target: str, named: str, preload: bool
) -> None:
    """Exit code 3. A message without a traceback names the module and where forkq looked for it."""
    env = PRELOAD if preload else {}
    forkq = tree(redis_server, app="", args=["-r", target], env=env, ready=False)
    assert forkq.wait(deadline=60) == 3
    log = forkq.log_text()
    assert named in log
    assert "cannot load the app" in log
    assert "Traceback" not in log
    forkq.assert_gone()


@pytest.mark.parametrize(
    ("source", "named", "code", "preload"),
    [
        ("raise RuntimeError('the config is missing')", "the config is missing", 8, True),
        ("def broken(:\n    pass\n", "SyntaxError", 3, False),
        ("def broken(:\n    pass\n", "SyntaxError", 3, True),
        ("import sys; sys.exit('not today')", "not today", 8, False),
        ("import sys; sys.exit(0)", "SystemExit", 8, True),
        ("import no_such_dependency", "no_such_dependency", 3, False),
        (
            "import forkq\n@forkq.job(quueue='x')\ndef odd() -> None: ...\n",
            "quueue",
            3,
            False,
        ),
    ],
    ids=["error", "syntax", "syntax-preload", "exit", "clean-exit", "dependency", "option"],
)
def test_an_app_that_fails_at_import(
    redis_server: Server, tree: StartTree, source: str, named: str, code: int, preload: bool
) -> None:
    """Exit code 3, at once, for what only another app can mend; 8, after boot_timeout, for all
    else. The message names the exception and the app, preloaded or not."""
    env = PRELOAD if preload else {}
    limit = _attempt_limit() if code == 8 else 0.0
    config = f"[forkq]\nboot_timeout = {limit}\n" if limit else None
    forkq = tree(redis_server, app=source, config=config, args=JSON, env=env, ready=False)
    assert forkq.wait(deadline=limit + 60) == code
    assert named in forkq.log_text()
    assert re.search(r"the app '?jobs|/jobs\.py", forkq.log_text())
    forkq.assert_gone()


def _attempt_limit() -> float:
    """Seconds for boot_timeout: enough for one attempt beside a load, and for no pause of 10 s."""
    return round(within(4.0), 1)


def test_children_that_cannot_boot_are_tried_until_boot_timeout_with_pauses(
    redis_server: Server, tree: StartTree
) -> None:
    """Then the master gives up and logs why, with an exit code that systemd restarts."""
    app = "import os\nos.write(2, b'now\\n')\nraise RuntimeError('the config is missing')\n"
    limit = _attempt_limit()
    config = f"[forkq]\nboot_timeout = {limit}\n"
    begun = time.monotonic()
    forkq = tree(redis_server, app=app, config=config, args=[*JSON, "-w", "1"], ready=False)
    assert forkq.wait(deadline=limit + 60) == 8
    assert time.monotonic() - begun >= 4.0
    attempts = forkq.log_text().count("now\n")
    assert attempts >= 2
    (line,) = events(forkq, "cannot boot; giving up")
    assert line["child"] == "default.0"
    assert line["attempts"] == attempts
    shown = r"RuntimeError: the config is missing \(.*/jobs\.py, line 3\)"
    assert re.fullmatch(shown, line["reason"])
    first, *others = events(forkq, FAILURE)
    assert first["reason"].startswith(
        f'Traceback (most recent call last):\n  File "{forkq.cwd}/jobs'
    )
    assert "importlib" not in first["reason"]
    assert [other["reason"] for other in others] == [line["reason"]] * (attempts - 1)


@pytest.mark.parametrize(
    ("deed", "how"),
    [
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os._exit(7)", "exit code 7"),
        ("os._exit(0)", "exit code 0"),
    ],
)
def test_children_that_die_at_import(
    redis_server: Server, tree: StartTree, deed: str, how: str
) -> None:
    """They cannot report a reason. The master logs how they died, and gives up in the end."""
    app = f"import os\nos.write(2, b'now\\n')\n{deed}\n"
    config = f"[forkq]\nboot_timeout = {_attempt_limit()}\n"
    forkq = tree(redis_server, app=app, config=config, args=JSON, ready=False)
    assert forkq.wait(deadline=60) == 8
    assert forkq.log_text().count("now\n") >= 2
    (line,) = events(forkq, "cannot boot; giving up")
    assert how in line["reason"]
    forkq.assert_gone()


def test_a_child_that_never_booted_leaves_nothing_to_rescue(tree: StartTree) -> None:
    """It has taken no job. Without Redis each of its ends would be told a second late, with the
    number of a later attempt, and the last line would be about jobs that stay leased."""
    args = ["-r", "no_such_module", *JSON]
    forkq = tree("redis://127.0.0.1:1/0", app="", args=args, ready=False)
    assert forkq.wait(deadline=60) == 3
    assert [line["attempt"] for line in events(forkq, "child cannot boot")] == [1]
    assert "leased" not in forkq.log_text()


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_tree_that_starts_before_its_database_waits_for_it(
    redis_server: Server, redis: Redis, tree: StartTree, end: str, preload: bool
) -> None:
    """As a host that boots before its database. A refused connection is no wrong app."""
    with socket.socket() as database:
        database.bind(("127.0.0.1", 0))
        env = {"DATABASE": str(database.getsockname()[1])}
        env |= PRELOAD if preload else {}
        args = ["-w", "1", *JSON]
        forkq = tree(redis_server, app=CONNECT + end, args=args, env=env, ready=False)
        wait_events(forkq, FAILURE)
        what = "ImportError: no driver" if "ImportError" in end else "ConnectionRefusedError"
        wait_until(
            lambda: f"default.0 cannot boot: {what}" in "".join(forkq.status().get("missing", [])),
            what="the status",
        )
        assert "booting: default.0 cannot boot" in title(psutil.Process(forkq.pid))
        assert len(events(forkq, FAILURE)) < 10
        database.listen()
        forkq.wait_ready()
    push(redis_server, "Touch")
    wait_settled(redis)
    wait_until(lambda: forkq.status()["missing"] == [], what="the status of a tree that is ready")
    assert forkq.stop() == 0
    assert events(forkq, "child is ready again")


def test_a_startup_handler_that_names_what_is_not_there_ends_the_tree_at_once(
    redis_server: Server, tree: StartTree
) -> None:
    app = "import forkq\n@forkq.on('startup')\ndef connect():\n    import no_such_driver\n"
    forkq = tree(redis_server, app=app, args=JSON, ready=False)
    assert forkq.wait(deadline=60) == 3
    (line,) = events(forkq, "cannot boot; giving up")
    assert line["attempts"] == 1
    assert "no_such_driver" in line["reason"]


def test_a_preloaded_app_is_imported_once_for_all_children(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """One import, in the master. The children share it, and so does a replacement."""
    app = APP.read_text() + "\n\nos.write(2, b'imported\\n')\n"
    config = "[forkq]\npreload = true\n"
    env = {**journal.env}
    forkq = tree(redis_server, app=app, config=config, args=["-w", "3", *JSON], env=env)
    workers(forkq)[0].kill()
    wait_events(forkq, "child died")
    wait_until(lambda: sum("busy]" in title(c) for c in workers(forkq)) == 3, what="a new child")
    jid = push(redis_server, "Quick", 0)
    journal.wait("end", [jid])
    assert forkq.log_text().count("imported") == 1
    assert forkq.stop() == 0


def test_each_child_imports_for_itself_without_preload(
    redis_server: Server, tree: StartTree
) -> None:
    """By default the master runs no code of the user."""
    app = "import os\nos.write(2, f'imported by {os.getpid()}\\n'.encode())\n"
    forkq = tree(redis_server, app=app, args=["-w", "2", *JSON])
    importers = {
        int(line.rsplit(" ", 1)[1])
        for line in forkq.log_text().splitlines()
        if line.startswith("imported by")
    }
    assert importers == {child.pid for child in workers(forkq)}
    assert forkq.stop() == 0


def test_a_preloaded_app_with_threads_is_refused_by_name(
    redis_server: Server, tree: StartTree
) -> None:
    """A lock that such a thread holds would stay locked in every child."""
    app = """
        import threading, time

        threading.Thread(target=time.sleep, args=(60,), name="the-poller", daemon=True).start()
    """
    config = "[forkq]\npreload = true\n"
    forkq = tree(redis_server, app=app, config=config, ready=False)
    assert forkq.wait(deadline=60) == 3
    log = forkq.log_text()
    assert "the-poller" in log
    assert "preload = false" in log
    assert "Traceback" not in log
    forkq.assert_gone()


def test_an_app_may_start_threads_without_preload(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """They run in the child, and do not keep it from stopping."""
    app = APP.read_text() + (
        "\n\nimport threading\n"
        "threading.Thread(target=time.sleep, args=(60,), name='the-poller').start()\n"
    )
    forkq = tree(redis_server, app=app, env=journal.env)
    jid = push(redis_server, "Quick", 0)
    journal.wait("end", [jid])
    began = time.monotonic()
    assert forkq.stop() == 0
    assert time.monotonic() - began < 25  # the time-out; the thread would last a minute


def test_a_child_inherits_neither_handlers_nor_descriptors_of_the_master(
    redis_server: Server, tree: StartTree
) -> None:
    """A child that held the pipe of another child open would hide the master's death from it."""
    forkq = tree(redis_server, app="import forkq", args=["-w", "3"])
    children = forkq.children()
    pipes = {child.pid: _pipes(child) for child in children}
    masters = _pipes(psutil.Process(forkq.pid))
    for child in children:
        for other in children:
            if child.pid != other.pid:
                assert not pipes[child.pid] & pipes[other.pid]
        # Its own control and report pipe, and no other.
        assert len(pipes[child.pid] & masters) == 2
    assert forkq.stop() == 0


def test_the_tree_survives_a_master_that_is_stopped_and_continued(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """As on a suspended laptop, or in a debugger: the children do not take it for dead."""
    forkq = tree(redis_server, app=APP, env=journal.env)
    before = forkq.children()
    forkq.signal(signal.SIGSTOP)
    jid = push(redis_server, "Quick", 0)
    journal.wait("end", [jid])
    forkq.signal(signal.SIGCONT)
    assert forkq.stop() == 0
    assert len(before) == 2


def _pipes(process: psutil.Process) -> set[str]:
    folder = f"/proc/{process.pid}/fd"
    links = set()
    for fd in os.listdir(folder):  # noqa: PTH208
        with suppress(FileNotFoundError):  # closed since: a process reads files now and then
            links.add(os.readlink(f"{folder}/{fd}"))  # noqa: PTH115
    return {link for link in links if link.startswith("pipe:")}
