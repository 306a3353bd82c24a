"""What `forkq doctor` says of a server, by its INFO."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions

from forkq.config.config import Config
from forkq.doctor.finding import Finding, examine
from forkq.doctor.server import ExaminedServer, eviction, persistence, redis_memory, version
from tests.unit.doctor.shared import config

GOOD = {"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "aof_enabled": "1"}


class FakeConnection:
    """A connection to a server with this INFO, and this answer to CONFIG GET save."""

    url = "redis://user:secret@127.0.0.1:1/0"

    def __init__(self, info: dict[str, str], save: Any) -> None:
        self._info = "".join(f"{key}:{value}\r\n" for key, value in info.items()).encode()
        self._save = save

    def call(self, *command: Any) -> Any:
        if command == ("INFO",):
            return b"# Server\r\n" + self._info
        if isinstance(self._save, Exception):
            raise self._save
        return self._save


def server(save: Any = None, **info: str) -> ExaminedServer:
    connection: Any = FakeConnection({**GOOD, **info}, {b"save": b""} if save is None else save)
    settings: Config = config()
    return ExaminedServer(connection, settings)


def test_the_version_is_shown_under_its_own_name() -> None:
    assert version(server()) == Finding("ok", "version", "Redis 7.0.15")
    valkey = version(server(server_name="valkey", valkey_version="9.1.2", redis_version="7.2.4"))
    assert valkey == Finding("ok", "version", "Valkey 9.1.2")


def test_a_server_that_is_too_old_fails_without_the_password() -> None:
    found = version(server(redis_version="6.0.16"))
    assert found.level == "fail"
    assert "6.0.16" in found.what
    assert "secret" not in str(found)


def test_a_policy_that_the_server_does_not_tell_is_not_taken_for_noeviction() -> None:
    """ElastiCache Serverless and some proxies leave it out, and delete keys."""
    silent = server(save=exceptions.ResponseError("unknown command"))
    silent.info = {key: value for key, value in silent.info.items() if key != "maxmemory_policy"}
    assert not eviction(silent).checked
    telling = server(save={b"maxmemory-policy": b"allkeys-lru"})
    telling.info = {**silent.info, "maxmemory": "1"}
    assert eviction(telling).level == "fail"


@pytest.mark.parametrize(
    "url",
    [
        "clusters://clustercfg.jobs.abc123.memorydb.us-east-1.amazonaws.com:6379",
        "rediss://jobs.abc123.clustercfg.memorydb.eu-west-2.amazonaws.com:6379/0",
    ],
)
def test_memorydb_loses_nothing_though_its_info_shows_no_file(url: str) -> None:
    found = server(aof_enabled="0")
    found.connection.url = url
    assert persistence(found).level == "ok"
    assert "loses nothing" in persistence(found).what
    found.connection.url = "rediss://jobs.abc123.use1.cache.amazonaws.com:6379/0"
    assert persistence(found).level == "warn"


@pytest.mark.parametrize(
    ("policy", "why"),
    [("allkeys-lru", "deletes jobs"), ("volatile-ttl", "deletes what says which processes live")],
)
def test_a_policy_that_deletes_keys_fails_where_memory_is_bounded(policy: str, why: str) -> None:
    """No policy deletes anything as long as there is no maxmemory."""
    assert eviction(server(maxmemory="1")).level == "ok"
    found = eviction(server(maxmemory_policy=policy, maxmemory=str(100 << 20)))
    what = f"maxmemory-policy is {policy}, maxmemory is 100MB"
    assert (found.level, found.what) == ("fail", what)
    assert why in found.why
    assert "noeviction" in found.remedy
    unbounded = eviction(server(maxmemory_policy=policy, maxmemory="0"))
    assert (unbounded.level, unbounded.checked) == ("warn", True)
    assert why in unbounded.why


@pytest.mark.parametrize("save", [{b"save": b""}, [b"save", b""]])
def test_missing_persistence_is_a_warning(save: Any) -> None:
    assert persistence(server(save)).level == "ok"
    found = persistence(server(save, aof_enabled="0"))
    assert (found.level, found.checked) == ("warn", True)
    assert "appendonly yes" in found.remedy


@pytest.mark.parametrize("save", [{b"save": b"3600 1"}, [b"save", b"3600 1"]])
def test_snapshots_alone_are_a_warning(save: Any) -> None:
    """A crash of the server loses what was pushed since the last one."""
    found = persistence(server(save, aof_enabled="0"))
    assert (found.level, found.what) == ("warn", "RDB snapshots alone (3600 1)")
    assert "appendonly yes" in found.remedy


def test_a_managed_server_that_hides_its_snapshots_is_not_called_unsafe() -> None:
    found = persistence(server(exceptions.ResponseError("NOPERM"), aof_enabled="0"))
    assert (found.level, found.checked) == ("warn", False)


@pytest.mark.parametrize(("used", "level"), [(70, "ok"), (80, "warn"), (96, "fail")])
def test_the_room_below_maxmemory(used: int, level: str) -> None:
    found = redis_memory(server(maxmemory=str(100 << 20), used_memory=str(used << 20)))
    assert found.level == level
    assert f"{used}MB of 100MB" in found.what


def test_without_maxmemory_the_memory_of_the_server_s_host_counts() -> None:
    memory = {"maxmemory": "0", "total_system_memory": str(100 << 20), "used_memory": str(80 << 20)}
    assert redis_memory(server(**memory)).level == "warn"
    found = redis_memory(server(maxmemory="0", used_memory="1"))
    assert (found.level, found.checked) == ("warn", False)


def test_an_answer_that_cannot_be_read_is_a_warning_and_no_traceback() -> None:
    found = examine("redis-memory", lambda: redis_memory(server(maxmemory="much")))
    assert (found.level, found.checked) == ("warn", False)
    assert "much" in found.why
