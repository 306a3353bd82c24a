"""Job arguments and passwords are other people's business: not in logs, titles or status."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest
from redis import Redis

from forkq import default_client
from tests.process.shared import APP, Journal, push, title, workers
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until
from tests.web.shared import client_of

ARGUMENT = "medical-record-4711"
PASSWORD = "open-sesame-42"


@pytest.fixture
def locked_server() -> Iterator[Server]:
    """A server that wants a password, given in the URL."""
    server = Server(tcp=True).start()
    server.cli("CONFIG", "SET", "requirepass", PASSWORD)
    yield server
    server.close()


@pytest.mark.parametrize("style", ["console", "json", "logfmt"])
def test_neither_arguments_nor_passwords_are_shown(
    locked_server: Server, tree: StartTree, journal: Journal, style: str
) -> None:
    """In any log format, at the chattiest level, while jobs run, fail, die, are dumped, rescued,
    buried and requeued, and while Redis goes."""
    address = f"redis://:{PASSWORD}@127.0.0.1:{locked_server.port}/0"
    args = ["-c", "2", "-t", "0.3", "-v", "--log-format", style]
    forkq = tree(address, app=APP, args=args, env=journal.env)
    push(address, "Fail", ARGUMENT, True)
    push(address, "Buried", ARGUMENT, retry=0)
    push(address, "Buried", ARGUMENT, "one too many", retry=0)
    push(address, "Unregistered", ARGUMENT)
    running = push(address, "Gate", ARGUMENT)
    journal.wait("begin", [running])
    titles = [title(process) for process in _processes_of(forkq.pid)]
    forkq.signal(signal.SIGTTIN)
    forkq.wait_log(f"Gate {running}")
    workers(forkq)[0].kill()
    wait_until(lambda: len(journal.runs()[running]) == 2, what="the job again")
    titles += [title(process) for process in _processes_of(forkq.pid)]
    status = forkq.status()
    shown = forkq.run("config", "check").stdout
    locked_server.stop()
    forkq.wait_log("redis lost")
    forkq.stop()
    for text in (forkq.log_text(), "\n".join(titles), str(status), shown):
        assert ARGUMENT not in text
        assert PASSWORD not in text
        assert "sesame" not in text


def test_the_environment_of_the_title_is_gone_too(
    locked_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A password given as a flag stands in no process's command line once it runs."""
    address = f"redis://:{PASSWORD}@127.0.0.1:{locked_server.port}/0"
    forkq = tree(address, app=APP, env=journal.env)
    jid = push(address, "Quick", 0)
    journal.wait("end", [jid])
    for process in _processes_of(forkq.pid):
        assert PASSWORD not in " ".join(process.cmdline())
    assert forkq.stop() == 0


def test_commands_and_the_web_ui_mask_what_the_app_names_as_secret(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """They have not imported the app: its children publish the names of parameters."""
    forkq = tree(redis_server, app=APP, env={**journal.env, "FORKQ_REDIS": redis_server.url})
    wait_until(lambda: redis.exists("forkq:parameters"), what="the names of parameters")
    jid = push(redis_server, "Fail", ARGUMENT, True, retry=0)
    waiting = push(redis_server, "Fail", ARGUMENT, False, at=time.time() + 3600)
    wait_until(lambda: redis.zcard("dead") == 1, what="the burial")
    for words in (("dead", "show", jid), ("scheduled", "show", waiting)):
        for more in ((), ("--json",)):
            done = forkq.run(*words, *more)
            assert done.returncode == 0, done.stderr
            assert ARGUMENT not in done.stdout
            assert "***" in done.stdout
    default_client.configure(redis_server.url)
    web = client_of()
    for path in ("/dead", f"/job?jid={jid}", "/scheduled", f"/search?q={jid}", "/failures"):
        answer = web.get(path)
        assert answer.status_code == 200
        assert ARGUMENT not in answer.text
    default_client.forget()


def _processes_of(pid: int) -> list[psutil.Process]:
    master = psutil.Process(pid)
    return [master, *master.children(recursive=True)]
