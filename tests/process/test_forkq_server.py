"""The fixture `forkq_server`, as the tests of an app use it: a real master, children and Redis."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import forkq
from forkq.testing import PushRefused
from forkq.testing.server import ForkqServer
from tests.support.waiting import wait_until

APP = """
import os
import forkq

@forkq.job(name="write_pid", queue="files")
def write_pid(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))

@forkq.job(name="fails", queue="files")
def fails() -> None:
    raise ValueError("no such thing")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app_of_this_test.py").write_text(APP)
    (tmp_path / "forkq.toml").write_text('[capsules.default]\nqueues = ["files"]\n')
    return "app_of_this_test"


def push(name: str, *args: object) -> str:
    jid = forkq.configure().push({"class": name, "args": [*args], "queue": "files"})
    assert jid is not None
    return jid


def test_jobs_run_in_a_forked_child(forkq_server: ForkqServer, app: str, tmp_path: Path) -> None:
    forkq_server.start(app)
    pid = tmp_path / "pid"
    forkq_server.wait_for(push("write_pid", str(pid)))
    assert int(pid.read_text()) != os.getpid()
    with pytest.raises(AssertionError) as raised:
        forkq_server.wait_for(push("fails"))
    assert "has failed and is retrying: ValueError: no such thing; the end of" in str(raised.value)
    wait_until(lambda: "ValueError: no such thing" in forkq_server.log, what="the line")
    with pytest.raises(RuntimeError, match="call stop"):
        forkq_server.start(app)
    forkq_server.stop()
    with pytest.raises(AssertionError, match="is still queued after 0 s"):
        forkq_server.wait_for(push("write_pid", str(pid)), timeout=0)


def test_each_test_has_an_empty_server_and_pushes_nowhere_else(forkq_server: ForkqServer) -> None:
    assert forkq.api.queues() == []
    assert os.environ["FORKQ_REDIS"] == forkq_server.url
    with pytest.raises(PushRefused):
        forkq.Client("redis://127.0.0.1:1/0").push({"class": "X", "args": []})


def test_an_app_that_does_not_load_is_reported(forkq_server: ForkqServer, app: str) -> None:
    with pytest.raises(AssertionError, match="did not become ready; the end") as raised:
        forkq_server.start("no_such_module")
    assert "no_such_module" in str(raised.value)
