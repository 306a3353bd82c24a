"""What the import of an app opens, and how it may fail."""

from __future__ import annotations

import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from forkq.doctor.app import app, preload
from forkq.doctor.opened import Opened
from forkq.doctor.probe import AppReport, import_app
from tests.support.waiting import wait_until, within
from tests.unit.doctor.shared import config


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(source: str, name: str = "probed_app", limit: float = 30.0) -> AppReport:
    Path(f"{name}.py").write_text(textwrap.dedent(source))
    return import_app(config(app=(name,), boot_timeout=limit))


def test_a_good_app_opens_nothing() -> None:
    found = report("""
        import socket, threading
        import forkq
        @forkq.job(name="Probed")
        def probed(): ...
        threading.Thread(target=print).start()
        for thread in threading.enumerate():
            thread is threading.current_thread() or thread.join()
        CLOSED = socket.socket()
        CLOSED.close()
        """)
    assert (found.error, found.threads, found.sockets) == ("", (), ())
    assert "Probed" in found.jobs
    assert preload(config(preload=True), found).level == "ok"
    assert app(config(app=("probed_app",)), found).level == "ok"


def test_threads_and_sockets_are_named_with_file_and_line(tmp_path: Path) -> None:
    found = report("""\
        import socket, threading
        DOOR = socket.create_server(("127.0.0.1", 0))
        PAIR = socket.socketpair()
        threading.Thread(target=threading.Event().wait, name="poller", daemon=True).start()
        threading.Timer(1000, print).start()
        """)
    place = tmp_path / "probed_app.py"
    assert found.threads[0] == f"poller ({place}:4)"
    assert found.threads[1].endswith(f" ({place}:5)")
    assert found.sockets == (f"{place}:2", f"{place}:3", f"{place}:3")
    refused = preload(config(preload=True), found)
    assert refused.level == "fail"
    assert f"poller ({place}:4)" in refused.what
    assert "startup" in refused.remedy
    assert preload(config(preload=False), found).level == "ok"


def test_a_library_s_socket_is_the_line_of_the_app_that_called_it(tmp_path: Path) -> None:
    found = report("""\
        import redis, socket
        DOOR = socket.create_server(("127.0.0.1", 0))
        LINK = redis.connection.Connection(port=DOOR.getsockname()[1])
        LINK._sock = LINK._connect()
        """)
    assert found.sockets == (f"{tmp_path}/probed_app.py:2", f"{tmp_path}/probed_app.py:4")
    warned = preload(config(preload=True), found)
    assert warned.level == "warn"
    assert "share" in warned.why


def test_a_socket_that_python_did_not_open_is_found_without_its_line() -> None:
    found = report("""
        import _socket
        DOOR = _socket.socket()
        """)
    assert found.sockets == ("by a library, no line is known",)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('go away')", "SystemExit: go away"),
        ("import os; os._exit(0)", "ended the process"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended the process"),
        ("def", "SyntaxError"),
        (
            "raise ValueError('two\\nlines \\x1b[2J' + 'x' * 10_000)",
            "ValueError: two\nlines \x1b[2J",
        ),
    ],
)
def test_an_app_that_cannot_be_imported_fails(source: str, said: str) -> None:
    found = report(source)
    assert said in found.error
    finding = app(config(app=("probed_app",)), found)
    assert finding.level == "fail"
    assert str(finding).isprintable()
    assert len(str(finding)) < 1000
    unknown = preload(config(preload=True), found)
    assert (unknown.level, unknown.checked) == ("warn", False)


def test_an_app_that_does_not_exist_is_told_as_forkq_start_tells_it() -> None:
    found = import_app(config(app=("no_such_app",)))
    assert found.error.startswith("cannot load the app 'no_such_app'")


def test_an_import_that_hangs_ends_at_its_limit() -> None:
    begun = time.monotonic()
    found = report("import threading; threading.Event().wait()", limit=0.3)
    assert time.monotonic() - begun < within(20)
    assert "has not ended after 0.3 s" in found.error


def test_a_thread_that_never_ends_does_not_keep_the_command() -> None:
    found = report("import threading; threading.Thread(target=threading.Event().wait).start()")
    assert len(found.threads) == 1


def test_no_app_is_a_warning() -> None:
    assert app(config(), None).checked is False
    assert preload(config(), None).checked is False


def test_what_the_app_puts_around_a_start_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Sentry does while it is imported. The thread is not noted after the block."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # put back at the end
    opened = Opened()
    started: list[threading.Thread] = []
    with opened.watch():
        inner = threading.Thread.start

        def wrapped(thread: threading.Thread) -> None:
            started.append(thread)
            inner(thread)

        monkeypatch.setattr(threading.Thread, "start", wrapped)
    assert vars(threading.Thread)["start"] is wrapped
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    noted = opened.threads()
    done.set()
    thread.join()
    assert (started, noted) == ([thread], [])


def test_what_the_app_starts_ends_with_the_probe() -> None:
    found = report("""
        import pathlib, subprocess
        import forkq
        child = subprocess.Popen(["sleep", "1000"])
        forkq.job(name=f"pid-{child.pid}")(lambda: None)
        """)
    [pid] = [int(name.removeprefix("pid-")) for name in found.jobs if name.startswith("pid-")]
    wait_until(lambda: not is_alive(pid), what="the end of the app's own process")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_stays_replaced() -> None:
    before = threading.Thread.start
    with Opened().watch():
        assert threading.Thread.start is not before
    assert threading.Thread.start is before
