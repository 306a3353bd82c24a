"""A client warns once of each queue that nothing serves, and no push waits for that or fails."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

import forkq
from forkq import default_client, registry
from forkq.store import unserved_queues
from tests.support.server import Server

TOML = '[redis]\nurl = "{url}"\n[capsules.default]\nqueues = ["default", "tenant-*"]\n'


@pytest.fixture
def folder(
    redis: Redis, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The working directory of an app, with a forkq.toml; the process's client is new."""
    (tmp_path / "forkq.toml").write_text(TOML.format(url=redis_server.url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(default_client, "_default", None)
    for name in ("FORKQ_REDIS", "REDIS_URL", "FORKQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    if default_client._default is not None:
        default_client._default.close()


def push(queue: str) -> None:
    forkq.configure() if default_client._default is None else None
    default_client.default().push({"class": "Mail", "args": [], "queue": queue})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    unserved_queues.finish(10.0)
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def lives(redis: Redis, *queues: str) -> None:
    """A process's record, as Sidekiq and forkq write it."""
    info = {"hostname": "h", "pid": 1, "started_at": 1.0, "queues": queues}
    redis.sadd("processes", "h:1:0123456789ab", "h:2:gone")
    redis.hset("h:1:0123456789ab", "info", json.dumps(info))


def test_a_queue_that_nothing_serves_is_warned_of_once(
    folder: Path, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        push("defualt")
    [warning] = warnings(caplog)
    assert 'queue "defualt"' in warning
    assert "no capsule of this configuration and no process that runs now serves it" in warning
    assert warning.endswith('did you mean "default"?')
    assert redis.llen("queue:defualt") == 3


def test_without_a_forkq_toml_the_warning_speaks_of_no_capsule(
    folder: Path, redis: Redis, redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "forkq.toml").unlink()
    lives(redis, "ruby")
    forkq.configure(redis_server.url)
    push("rubi")
    [warning] = warnings(caplog)
    assert 'queue "rubi", but no process that runs now serves it' in warning
    assert warning.endswith('did you mean "ruby"?')


def test_no_warning_for_what_a_capsule_or_a_living_process_serves(
    folder: Path, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    lives(redis, "ruby", "other-*")
    for queue in ("default", "tenant-7", "ruby", "other-1"):
        push(queue)
    assert warnings(caplog) == []


def test_redis_is_asked_once_for_each_queue_and_never_for_one_of_a_capsule(
    folder: Path, redis: Redis
) -> None:
    redis.config_resetstat()
    for _ in range(5):
        push("default")
        push("low")
    unserved_queues.finish(10.0)
    assert redis.info("commandstats")["cmdstat_smembers"]["calls"] == 1


def test_a_check_that_gets_no_answer_delays_no_push_and_is_no_error(
    folder: Path, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(unserved_queues, "_TIMEOUT", 60.0)
        client = forkq.configure()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        client.pushed_to = unserved_queues.UnservedQueues(url, client.keys, ()).look_for
        push("low")
        running = [each.name for each in threading.enumerate()]
        assert "forkq-unserved-queues" in running  # it still waits, and the push has returned
    assert warnings(caplog) == []  # once the end of the silent server has ended its wait


def test_a_user_who_may_only_push_is_not_warned(
    folder: Path, redis: Redis, redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rights = ["on", ">x", "resetchannels", "-@all", "+hello", "+client", "+sadd", "+lpush"]
    redis_server.cli("ACL", "SETUSER", "pusher", *rights, "+zadd", "~*")
    try:
        url = redis_server.url.replace("redis://", "redis://pusher:x@")
        forkq.configure(url)
        push("low")
        assert warnings(caplog) == []
    finally:
        redis_server.cli("ACL", "DELUSER", "pusher")


def test_a_push_to_localhost_without_any_configuration_is_announced_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_client, "_announced", False)
    forkq.configure(environ={}).close()
    assert warnings(caplog) == []
    (folder / "forkq.toml").unlink()
    forkq.configure(environ={"FORKQ_REDIS": "redis://localhost:1/0"}).close()
    assert warnings(caplog) == []
    for _ in range(2):
        forkq.configure(environ={}).close()
    [said] = warnings(caplog)
    assert said.endswith("jobs are pushed to redis://localhost:6379/0")
