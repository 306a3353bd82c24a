"""Job arguments and passwords are other people's business: not in logs, titles or status."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.process.shared import APP, Journal, push, title, workers
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

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


def _processes_of(pid: int) -> list[psutil.Process]:
    master = psutil.Process(pid)
    return [master, *master.children(recursive=True)]
